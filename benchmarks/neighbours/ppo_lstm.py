"""PPO with an LSTM in plain torch, after the single-file style of CleanRL.

    .venv/bin/python -m benchmarks.neighbours.ppo_lstm popgym-RepeatPreviousEasy-v0 --steps 96000 --out runs/ppo

Source: Schulman et al. 2017, "Proximal Policy Optimization Algorithms"; Huang et al. 2022, "The 37 Implementation
Details of Proximal Policy Optimization". T = steps of a rollout, E = environments, D = width of an observation.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, Normal

from benchmarks.neighbours.common import ACTORS, Act, Journal, parse

ROLLOUT = 128  # T
EPOCHS = 4
MINIBATCHES = 4  # of whole environments
LEARNING_RATE = 2.5e-4  # falls linearly to 0
WIDTH = 128
GAMMA, LAMBDA = 0.99, 0.95
CLIP, VALUE_WEIGHT, GRAD_NORM = 0.2, 0.5, 0.5
ENTROPY_WEIGHT = 0.01  # 0 for continuous actions

Memory = tuple[Tensor, Tensor]  # (1, E, WIDTH) each


def linear(width_in: int, width_out: int, gain: float) -> nn.Linear:
    """A layer with orthogonal weights."""
    layer = nn.Linear(width_in, width_out)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class Policy(nn.Module):
    """A layer, an LSTM, and heads for actions and values."""

    def __init__(self, width: int, space: gym.spaces.Space[Any]) -> None:
        super().__init__()
        self.discrete = isinstance(space, gym.spaces.Discrete)
        outputs = int(space.n) if isinstance(space, gym.spaces.Discrete) else int(np.prod(space.shape or ()))
        self.encoder = nn.Sequential(linear(width, WIDTH, 2**0.5), nn.Tanh())
        self.lstm = nn.LSTM(WIDTH, WIDTH)
        for name, weight in self.lstm.named_parameters():
            nn.init.zeros_(weight) if "bias" in name else nn.init.orthogonal_(weight)
        self.actor = linear(WIDTH, outputs, 0.01)
        self.log_std = nn.Parameter(torch.zeros(outputs))
        self.critic = linear(WIDTH, 1, 1.0)

    def start(self, envs: int) -> Memory:
        """Empty memory."""
        return torch.zeros(1, envs, WIDTH), torch.zeros(1, envs, WIDTH)

    def forward(
        self, obs: Tensor, first: Tensor, memory: Memory
    ) -> tuple[Categorical | Independent[Any], Tensor, Memory]:
        """Distributions of actions, values (T, E) and the memory after obs (T, E, D); first (T, E) empties it."""
        encoded = self.encoder(obs)
        outputs = []
        for features, begins in zip(encoded, first, strict=True):
            kept = (1.0 - begins)[None, :, None]
            out, memory = self.lstm(features[None], (memory[0] * kept, memory[1] * kept))
            outputs.append(out)
        hidden = torch.cat(outputs)
        heads = self.actor(hidden)
        actions = (
            Categorical(logits=heads) if self.discrete else Independent(Normal(heads, self.log_std.exp()), 1)
        )
        return actions, self.critic(hidden).squeeze(-1), memory


class Scaler:
    """Observations minus their mean over their standard deviation, clipped to +-10."""

    def __init__(self, width: int) -> None:
        self.mean, self.var, self.count = np.zeros(width), np.ones(width), 1e-4

    def add(self, obs: Any) -> None:
        """Counts observations (N, D)."""
        mean, var, n = obs.mean(0), obs.var(0), len(obs)
        total = self.count + n
        delta = mean - self.mean
        self.var = (self.var * self.count + var * n + delta**2 * self.count * n / total) / total
        self.mean, self.count = self.mean + delta * n / total, total

    def __call__(self, obs: Any) -> Tensor:
        scaled = np.clip((obs - self.mean) / np.sqrt(self.var + 1e-8), -10.0, 10.0)
        return torch.as_tensor(scaled, dtype=torch.float32)


def acting(policy: Policy, scaler: Scaler, *, greedy: bool) -> Act:
    """The policy for evaluations; samples discrete actions unless `greedy`."""
    memory: Memory | None = None

    @torch.no_grad()
    def act(obs: Any, first: Any) -> Any:
        nonlocal memory
        memory = policy.start(len(obs)) if memory is None else memory
        chosen, _, memory = policy(scaler(obs)[None], torch.as_tensor(first)[None].float(), memory)
        if not greedy:
            return chosen.sample()[0].numpy()
        return (chosen.probs.argmax(-1) if isinstance(chosen, Categorical) else chosen.mean)[0].numpy()

    return act


def advantages(rewards: Tensor, values: Tensor, ends: Tensor, last_value: Tensor) -> Tensor:
    """Generalised advantages (T, E); ends[t] says that step t ended an episode."""
    result = torch.zeros_like(rewards)
    running = torch.zeros_like(last_value)
    next_value = last_value
    for t in reversed(range(len(rewards))):
        goes_on = 1.0 - ends[t]
        delta = rewards[t] + GAMMA * next_value * goes_on - values[t]
        running = delta + GAMMA * LAMBDA * goes_on * running
        result[t], next_value = running, values[t]
    return result


def main() -> None:
    """Trains and evaluates."""
    arguments = parse(__doc__)
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    journal = Journal(arguments)
    envs = [journal.make_env() for _ in range(ACTORS)]
    space = envs[0].action_space
    width = int(np.prod(envs[0].observation_space.shape or ()))
    policy, scaler = Policy(width, space), Scaler(width)
    box = space if isinstance(space, gym.spaces.Box) else None
    optimizer = torch.optim.Adam(policy.parameters(), lr=LEARNING_RATE, eps=1e-5)
    obs = np.stack([env.reset(seed=1_000 * arguments.seed + row)[0] for row, env in enumerate(envs)])
    first = np.ones(ACTORS, np.float32)
    memory = policy.start(ACTORS)
    returns = np.zeros(ACTORS)  # discounted, for the scale of rewards
    reward_scale = Scaler(1)
    rounds = max(1, round(arguments.steps / (ROLLOUT * ACTORS)))
    steps = updates = 0
    for index in range(rounds):
        if journal.is_due(steps):
            journal.note(acting(policy, scaler, greedy=box is not None), steps, updates)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1.0 - index / rounds)
        begin = memory
        stored: dict[str, list[Tensor]] = {
            key: [] for key in ("obs", "first", "action", "log_prob", "value", "reward", "end")
        }
        for _ in range(ROLLOUT):
            scaler.add(obs)
            seen, begins = scaler(obs), torch.as_tensor(first)
            with torch.no_grad():
                chosen, value, memory = policy(seen[None], begins[None], memory)
                action = chosen.sample()
            raw, ends = np.zeros(ACTORS), np.zeros(ACTORS, np.float32)
            bonus = np.zeros(ACTORS)
            for row, env in enumerate(envs):
                sent = action[0, row].numpy()
                sent = sent if box is None else np.clip(sent, box.low, box.high)
                obs[row], raw[row], terminated, truncated, _ = env.step(sent)
                ends[row] = terminated or truncated
                if truncated and not terminated:  # values go on after a time limit
                    with torch.no_grad():
                        its_memory = (memory[0][:, row : row + 1], memory[1][:, row : row + 1])
                        bonus[row] = policy(scaler(obs[row])[None, None], torch.zeros(1, 1), its_memory)[
                            1
                        ].item()
                if ends[row]:
                    obs[row] = env.reset()[0]
            returns = returns * GAMMA + raw
            reward_scale.add(returns[:, None])
            returns *= 1.0 - ends
            reward = np.clip(raw / np.sqrt(reward_scale.var[0] + 1e-8), -10.0, 10.0) + GAMMA * bonus
            reward_row = torch.as_tensor(reward, dtype=torch.float32)
            parts = (
                seen,
                begins,
                action[0],
                chosen.log_prob(action)[0],
                value[0],
                reward_row,
                torch.as_tensor(ends),
            )
            for key, part in zip(stored, parts, strict=True):
                stored[key].append(part)
            first = ends
            steps += ACTORS
        batch = {key: torch.stack(parts) for key, parts in stored.items()}
        with torch.no_grad():
            last = policy(scaler(obs)[None], torch.as_tensor(first)[None], memory)[1][0]
        advantage = advantages(batch["reward"], batch["value"], batch["end"], last)
        target = advantage + batch["value"]
        for _ in range(EPOCHS):
            for rows in torch.randperm(ACTORS).chunk(MINIBATCHES):
                start = (begin[0][:, rows], begin[1][:, rows])
                chosen, value, _ = policy(batch["obs"][:, rows], batch["first"][:, rows], start)
                ratio = (chosen.log_prob(batch["action"][:, rows]) - batch["log_prob"][:, rows]).exp()
                own = advantage[:, rows]
                own = (own - own.mean()) / (own.std() + 1e-8)
                gain = torch.minimum(own * ratio, own * ratio.clamp(1.0 - CLIP, 1.0 + CLIP)).mean()
                value_loss = 0.5 * (value - target[:, rows]).square().mean()
                entropy = chosen.entropy().mean() if box is None else torch.zeros(())
                loss = VALUE_WEIGHT * value_loss - gain - ENTROPY_WEIGHT * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), GRAD_NORM)
                optimizer.step()
                updates += 1
    for env in envs:
        env.close()
    journal.finish(acting(policy, scaler, greedy=box is not None), steps, updates)


if __name__ == "__main__":
    main()
