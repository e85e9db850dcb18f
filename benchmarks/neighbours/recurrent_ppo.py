"""RecurrentPPO of sb3-contrib, with 16 environments and standardised observations and rewards.

Its default settings but for three, so that a run takes minutes on one core: an LSTM of 128 in place of 256,
batches of 512 in place of 128, 4 epochs in place of 10.

    pip install --no-deps stable-baselines3 sb3-contrib
    .venv/bin/python -m benchmarks.neighbours.recurrent_ppo CartPole-v1 --steps 80000 --out runs/ppo
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from benchmarks.neighbours.common import ACTORS, Act, Journal, parse

SETTINGS: dict[str, Any] = {
    "n_steps": 128,
    "batch_size": 512,
    "n_epochs": 4,
    "policy_kwargs": {"lstm_hidden_size": 128},
}


def acting(model: Any, envs: VecNormalize) -> Act:
    """The policy for evaluations; samples discrete actions."""
    state: Any = None
    greedy = isinstance(model.action_space, gym.spaces.Box)

    def act(obs: Any, first: Any) -> Any:
        nonlocal state
        actions, state = model.predict(
            envs.normalize_obs(obs), state=state, episode_start=np.asarray(first), deterministic=greedy
        )
        return actions

    return act


class Evaluations(BaseCallback):  # type: ignore[misc] # stable-baselines3 is not installed for mypy
    """Evaluates before rollouts, when the journal says so."""

    def __init__(self, journal: Journal, envs: VecNormalize) -> None:
        super().__init__()
        self.journal, self.envs = journal, envs

    def _on_rollout_start(self) -> None:
        if self.journal.is_due(self.num_timesteps):
            updates = self.model._n_updates  # epochs over a rollout
            self.journal.note(acting(self.model, self.envs), self.num_timesteps, updates)

    def _on_step(self) -> bool:
        return True


def main() -> None:
    """Trains and evaluates."""
    arguments = parse(__doc__)
    torch.set_num_threads(1)
    journal = Journal(arguments)
    envs = VecNormalize(DummyVecEnv([lambda: Monitor(journal.make_env()) for _ in range(ACTORS)]))
    model = RecurrentPPO("MlpLstmPolicy", envs, seed=arguments.seed, device="cpu", **SETTINGS)
    model.learn(arguments.steps, callback=Evaluations(journal, envs))
    journal.finish(acting(model, envs), model.num_timesteps, model._n_updates)
    envs.close()


if __name__ == "__main__":
    main()
