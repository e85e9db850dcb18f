"""Small real environments that the tests of amago.envs and amago.hindsight step."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from amago.hindsight import FrozenTraj


class SpaceEnv(gym.Env):
    """Has any spaces, samples its observations, and keeps the actions it received.

    An episode ends after `episode_steps`, by termination; rewards count the steps of the episode: 1, 2, ...
    """

    def __init__(self, observation_space: gym.Space, action_space: gym.Space, episode_steps: int = 4) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.episode_steps = episode_steps
        self.received: list[Any] = []
        self.returned: list[Any] = []
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.received.append(action)
        self.steps += 1
        return self._observe(), float(self.steps), self.steps >= self.episode_steps, False, {}

    def _observe(self) -> Any:
        self.returned.append(self.observation_space.sample())
        return self.returned[-1]


class CountingBatchEnv(gym.Env):
    """E environments in one, which reset themselves: row e ends after e + 2 steps. Observations count steps."""

    def __init__(self, batched_envs: int, action_space: gym.Space | None = None) -> None:
        self.batched_envs = batched_envs
        self.observation_space = gym.spaces.Box(0.0, np.inf, (1,), np.float32)
        self.action_space = action_space or gym.spaces.Discrete(3, start=5)
        self.received: list[Any] = []
        self.limits = np.arange(batched_envs) + 2

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = np.zeros(self.batched_envs, dtype=np.int64)
        return self.steps[:, None].astype(np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        self.received.append(action)
        self.steps = self.steps + 1
        rewards = self.steps.astype(np.float64)
        terminated = self.steps >= self.limits
        final_obs = self.steps[:, None].astype(np.float32)
        self.steps = np.where(terminated, 0, self.steps)
        info = {"final_obs": final_obs} if terminated.any() else {}
        return self.steps[:, None].astype(np.float32), rewards, terminated, np.zeros_like(terminated), info


@pytest.fixture
def space_env() -> Callable[..., SpaceEnv]:
    """Makes a SpaceEnv from an observation space and an action space; either may be left out."""

    def make(
        observation_space: gym.Space | None = None,
        action_space: gym.Space | None = None,
        episode_steps: int = 4,
    ) -> SpaceEnv:
        box = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        discrete = gym.spaces.Discrete(3)
        return SpaceEnv(observation_space or box, action_space or discrete, episode_steps)

    return make


@pytest.fixture
def counting_batch_env() -> type[CountingBatchEnv]:
    """The class of an environment that steps several rows and resets them itself."""
    return CountingBatchEnv


@pytest.fixture(scope="session")
def make_frozen() -> Callable[..., FrozenTraj]:
    """Makes a trajectory of a given length with random contents and two observation keys."""

    def make(length: int = 7, seed: int = 0) -> FrozenTraj:
        rng = np.random.default_rng(seed)
        actions = rng.standard_normal((length, 3)).astype(np.float32)
        rews = rng.standard_normal((length, 1)).astype(np.float32)
        rl2s = np.zeros((length + 1, 4), dtype=np.float32)
        rl2s[1:] = np.concatenate((rews, actions), axis=1)
        return FrozenTraj(
            obs={
                "image": rng.integers(0, 256, (length + 1, 4, 4, 3), dtype=np.uint8),
                "nested/state": rng.standard_normal((length + 1, 2)),
            },
            rl2s=rl2s,
            time_idxs=np.arange(length + 1).reshape(-1, 1),
            rews=rews,
            dones=np.arange(length).reshape(-1, 1) == length - 1,
            actions=actions,
        )

    return make
