"""Your own encoder, agent, exploration and dataset in one file.

The task is CartPole without velocities, beside data of a hand-written teacher. The observation is the
cart's position and the pole's angle, so the policy must remember; an episode returns at most 500. Each
part below is a class of your own under a name that the common options accept (--agent_type, --traj_encoder
take registered names), and gin sets its arguments (--configs).

    python examples/15_your_own_parts.py --run_name parts --buffer_dir runs --no_log --epochs 30 --env_mode sync \\
        --dloader_workers 0 --timesteps_per_epoch 200 --batches_per_epoch 50 --memory_size 64 --memory_layers 1

That took 91 seconds of one CPU core and reached a mean return of 262 in its test (seed 0; random actions:
23).
"""

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

import gin
import gymnasium as gym
import numpy as np
import torch
from common import parse_args, run_trials
from torch import Tensor, nn

from amago import (
    Agent,
    Experiment,
    ExplorationWrapper,
    TstepEncoder,
    register_agent,
    register_exploration,
    register_tstep_encoder,
)
from amago.cli_utils import (
    add_common_cli,
    create_experiment_from_cli,
    switch_agent,
    switch_exploration,
    switch_traj_encoder,
    switch_tstep_encoder,
    use_config,
)
from amago.envs import AMAGOEnv
from amago.loading import DiskTrajDataset, MixtureOfDatasets, RLData, RLDataset

SEEN = [0, 2]  # position and angle; 1 and 3 are their velocities


def make_env() -> AMAGOEnv:
    """CartPole with half of its observation."""
    env = gym.make("CartPole-v1")
    space = gym.spaces.Box(-5.0, 5.0, (len(SEEN),), np.float32)
    return AMAGOEnv(gym.wrappers.TransformObservation(env, lambda obs: obs[SEEN], space), "HalfSeenCartPole")


@register_tstep_encoder("fourier")
@gin.configurable
class FourierEncoder(TstepEncoder):
    """Sines of the observation at several frequencies, which let a network tell close values apart.

    Args:
        obs_space: Dict with the key "observation", D numbers.
        rl2_space: space of previous reward and action.
        frequencies: number of frequencies: pi, 2 pi, 4 pi and so on.
        d_output: width of the output.
    """

    def __init__(
        self, obs_space: gym.spaces.Dict, rl2_space: gym.spaces.Box, frequencies: int = 4, d_output: int = 64
    ) -> None:
        super().__init__(obs_space=obs_space, rl2_space=rl2_space)
        self.register_buffer("frequencies", torch.pi * 2.0 ** torch.arange(frequencies))
        d_input = obs_space["observation"].shape[0] * (1 + frequencies) + rl2_space.shape[0]
        self.layers = nn.Sequential(nn.Linear(d_input, 128), nn.LeakyReLU(), nn.Linear(128, d_output))
        self.norm = nn.LayerNorm(d_output)

    @property
    def emb_dim(self) -> int:
        """Width of the output."""
        return self.norm.normalized_shape[0]

    def inner_forward(
        self, obs: dict[str, Tensor], rl2s: Tensor, log_dict: dict[str, Any] | None = None
    ) -> Tensor:
        """Observations (B, L, D) and rl2s (B, L, 1 + A) to (B, L, d_output)."""
        x = obs["observation"]
        sines = torch.sin(x.unsqueeze(-1) * self.frequencies).flatten(-2)
        return self.norm(self.layers(torch.cat((x, sines, rl2s), dim=-1)))


@register_agent("bounded")
@gin.configurable
class BoundedAgent(Agent):
    """Knows that rewards are between 0 and 1, so that a return is between 0 and 1 / (1 - gamma)."""

    def td_targets(self, *args: Any) -> Tensor:
        """Targets of the critics (..., G, 1), in units of the reward multiplier, within their bounds."""
        highest = self.reward_multiplier / (1.0 - self.gammas.unsqueeze(-1))  # (G, 1)
        return super().td_targets(*args).clamp(min=0.0).minimum(highest)


@register_exploration("bursts")
@gin.configurable
class Bursts(ExplorationWrapper):
    """Now and then one random action for several steps: pushes the cart farther than single random steps do.

    Args:
        amago_env: the environment.
        chance: probability that a burst begins, per step.
        length: its steps.
    """

    def __init__(self, amago_env: AMAGOEnv, chance: float = 0.02, length: int = 4) -> None:
        super().__init__(amago_env)
        self.chance = chance
        self.length = length
        self.steps_left = np.zeros(self.batched_envs, np.int64)
        self.burst = np.zeros(self.batched_envs, np.int64)

    def add_exploration_noise(self, action: np.ndarray, local_step: np.ndarray) -> np.ndarray:
        """The action of each environment, or that of its burst."""
        begins = (self.steps_left == 0) & (self.rng.random(self.batched_envs) < self.chance)
        self.burst[begins] = self.rng.integers(self.action_space.n, size=begins.sum())
        self.steps_left[begins] = self.length
        bursting = self.steps_left > 0
        self.steps_left[bursting] -= 1
        burst = self.burst.reshape(-1, *(1,) * (action.ndim - 1))
        return np.where(bursting.reshape(burst.shape), burst, action)


class Teacher(RLDataset):
    """Episodes of a hand-written controller, played when the dataset is made; nothing is saved.

    Args:
        episodes: number of episodes.
    """

    def __init__(self, episodes: int = 20) -> None:
        super().__init__(dset_name="teacher")
        self.episodes = [self.play(seed) for seed in range(episodes)]

    @staticmethod
    def play(seed: int) -> RLData:
        """An episode in which the cart is pushed to the side to which the pole falls."""
        env = gym.make("CartPole-v1")
        state, _ = env.reset(seed=seed)
        states, actions, rewards, over = [state], [], [], False
        while not over:
            actions.append(int(state @ (0.1, 0.4, 10.0, 2.0) > 0))
            state, reward, terminated, truncated, _ = env.step(actions[-1])
            states.append(state)
            rewards.append(reward)
            over = terminated or truncated
        steps = len(actions)
        dones = np.zeros((steps, 1), np.bool_)
        dones[-1] = terminated  # and not at the time limit, after which the pole would still stand
        return RLData(
            obs={"observation": np.array(states, np.float32)[:, SEEN]},
            actions=np.eye(2, dtype=np.float32)[actions],
            rews=np.array(rewards, np.float32)[:, None],
            dones=dones,
            time_idxs=np.arange(steps + 1)[:, None],
        )

    def sample_random_trajectory(self) -> RLData:
        """Any of the episodes; `self.rng` is the random stream of this sample."""
        return self.episodes[self.rng.integers(len(self.episodes))]


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Trains and tests; returns the metrics of the last trial's test."""
    parser = add_common_cli(ArgumentParser(description=__doc__.splitlines()[0]))
    parser.add_argument("--teacher_share", type=float, default=0.25, help="share of the teacher's data")
    parser.set_defaults(agent_type="bounded")
    args = parse_args(parser, argv, smoke="--timesteps_per_epoch 100")

    config: dict[str, Any] = {"Bursts.chance": 0.05}
    tstep_encoder = switch_tstep_encoder(config, "fourier", frequencies=3)
    traj_encoder = switch_traj_encoder(config, args.traj_encoder, args.memory_size, args.memory_layers)
    agent = switch_agent(
        config,
        args.agent_type,
        reward_multiplier=1.0,
        gamma=0.99,
        use_multigamma=False,
        tau=0.05,
        n_step=5,
        offline_coeff=1.0,  # imitates what the critics find better than the policy, such as the teacher
    )
    exploration = switch_exploration(config, "bursts", length=3)
    use_config(config, args.configs)

    def make_experiment(run_name: str) -> Experiment:
        replay = DiskTrajDataset(args.buffer_dir, run_name, dset_max_size=args.dset_max_size)
        dataset = MixtureOfDatasets([Teacher(), replay], [args.teacher_share, 1.0 - args.teacher_share])
        return create_experiment_from_cli(
            args,
            make_train_env=make_env,
            make_val_env=make_env,
            max_seq_len=32,
            traj_save_len=64,
            dataset=dataset,
            group_name=args.run_name,
            run_name=run_name,
            agent_type=agent,
            tstep_encoder_type=tstep_encoder,
            traj_encoder_type=traj_encoder,
            exploration_wrapper_type=exploration,
            val_timesteps_per_epoch=500,
            padded_sampling="both",
            learning_rate=5e-4,
            lr_warmup_steps=100,
            sample_actions_val=False,
        )

    return run_trials(args, args.run_name, make_experiment, make_env, test_timesteps=2_000)


if __name__ == "__main__":
    main()
