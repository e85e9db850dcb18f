"""Additions to the catalog for `benchmarks.learning`: the T-Maze's exploration, and a dataset of Pendulum.

`benchmarks.learning_envs:TMazeAltPassive` on the command line imports this module, which registers the
exploration.

    .venv/bin/python -m benchmarks.learning_envs RUN        # records the dataset with the policy of a run
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import gin
import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.builtin.tmaze import TMazeAltPassive
from amago.envs.exploration import EpsilonGreedy, register_exploration

__all__ = ["CartPoleWithoutVelocities", "CorridorExploration", "TMazeAltPassive"]

DATASET = "amago/pendulum-mixed-v0"
DATASETS = Path(__file__).parents[1] / "build" / "minari"
EPISODES = 200


@register_exploration("corridor")
@gin.configurable
class CorridorExploration(EpsilonGreedy):
    """Epsilon-greedy at both ends of a T-Maze; between them epsilon is multiplied by 0.5 / length.

    One wrong step in the corridor costs the goal, so with a constant epsilon no episode would reach it.

    Args:
        amago_env: a T-Maze.
        end_window: steps before the junction that count as its end.
        eps_start, eps_end, steps_anneal: as in EpsilonGreedy.
    """

    def __init__(
        self,
        amago_env: Any,
        end_window: int = 3,
        eps_start: float = 1.0,
        eps_end: float = 0.05,
        steps_anneal: int = 100_000,
    ) -> None:
        super().__init__(amago_env, eps_start=eps_start, eps_end=eps_end, steps_anneal=steps_anneal)
        self.end_window = end_window
        self.length = int(amago_env.unwrapped.corridor_length)

    def current_eps(self, local_step: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Epsilon of each environment."""
        eps = super().current_eps(local_step)
        eps[(local_step > 0) & (local_step < self.length - self.end_window)] *= 0.5 / self.length
        return eps


class CartPoleWithoutVelocities(
    gym.ObservationWrapper[npt.NDArray[np.float32], int, npt.NDArray[np.float32]]
):
    """CartPole-v1 that shows the cart's position and the pole's angle alone."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(gym.make("CartPole-v1", **kwargs))
        space = self.env.observation_space
        assert isinstance(space, gym.spaces.Box)
        self.observation_space = gym.spaces.Box(space.low[[0, 2]], space.high[[0, 2]])

    def observation(self, observation: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The two positions."""
        return observation[[0, 2]]


def record_pendulum(run: str) -> None:
    """Records DATASET: each episode mixes the run's policy with random actions, from none to all of them."""
    os.environ["MINARI_DATASETS_PATH"] = str(DATASETS)
    import minari

    from amago import Policy

    if DATASET in minari.list_local_datasets():
        minari.delete_dataset(DATASET)
    rng = np.random.default_rng(0)
    policy = Policy.load(run)
    env = minari.DataCollector(gym.make("Pendulum-v1"))
    returns = []
    for episode in range(EPISODES):
        share = episode / (EPISODES - 1)
        obs, _ = env.reset(seed=episode)
        reward, done, total = None, True, 0.0
        while not done or reward is None:
            action = policy.act(obs, reward, reward is None)
            if rng.random() < share:
                action = rng.uniform(-2.0, 2.0, (1,)).astype(np.float32)
            obs, step_reward, terminated, truncated, _ = env.step(action)
            reward = float(step_reward)
            total += reward
            done = terminated or truncated
        returns.append(total)
    env.create_dataset(
        DATASET,
        algorithm_name="a trained policy mixed with random actions",
        author="amago",
        author_email="",
        code_permalink="",
    )
    env.close()
    print(
        f"{DATASET}: {EPISODES} episodes, mean return {np.mean(returns):.1f}, "
        f"best tenth {np.mean(sorted(returns)[-EPISODES // 10 :]):.1f}"
    )


if __name__ == "__main__":
    record_pendulum(sys.argv[1])
