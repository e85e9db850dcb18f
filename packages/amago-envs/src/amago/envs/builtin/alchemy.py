"""Symbolic Alchemy of DeepMind's dm_alchemy (Wang et al. 2021): learn a hidden chemistry within ten trials.

Written for dm_alchemy's repository of 2023, which works with numpy 1.24 and later. dm_alchemy is not on PyPI, so
the tests use a stand-in with its interface.
"""

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from amago.envs.builtin.optional import ALCHEMY_INSTALL, optional_import
from amago.envs.metrics import AMAGO_ENV_LOG_PREFIX

LEVEL = "alchemy/perceptual_mapping_randomized_with_rotation_and_random_bottleneck"
STEPS_PER_TRIAL = 20
NUM_OBSERVATIONS, NUM_ACTIONS = 39, 40
MAX_SEED = 1_000_000


class SymbolicAlchemy(gym.Env[npt.NDArray[np.float32], int]):
    """Ten trials of twenty steps, each with new stones and potions; the hidden chemistry is that of the episode.

    Observation, float32 (39,): of each of 3 stones three perceived coordinates, its value / 3 and whether it is
    used; of each of 12 potions type / 3 - 1 (six types) and whether it is used. Values are in [-1, 1], but those
    of a used stone read 2, 2, 2, 2, 1. Actions, Discrete(40): 0 does nothing, 1 + 13 s puts stone s into the
    cauldron, 2 + 13 s + p dips stone s into potion p; what is impossible does nothing. Reward: the value of a
    stone that goes into the cauldron, -3, -1, 1 or 15. The episode ends after 200 steps, both terminated and
    truncated. The last step of trial i, 0 to 9, has the metric "Trial {i} Return" in `info`.

    Raises:
        ImportError: if dm_alchemy is not installed; the message has the command.
        ValueError: from `reset`, if its observations or actions are others than these.
    """

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        module = optional_import("dm_alchemy.symbolic_alchemy", install=ALCHEMY_INSTALL)
        self._get_level = module.get_symbolic_alchemy_level
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (NUM_OBSERVATIONS,), np.float32)
        self.action_space = gym.spaces.Discrete(NUM_ACTIONS)  # type: ignore[assignment]
        self._level: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        """Builds a level, once per episode, whose seed decides its chemistry, stones and potions."""
        super().reset(seed=seed)
        self._level = self._get_level(LEVEL, seed=int(self.np_random.integers(MAX_SEED + 1)))
        num_actions = int(self._level.action_spec().num_values)
        if num_actions != NUM_ACTIONS:
            raise ValueError(f"dm_alchemy's level has {num_actions} actions, and {NUM_ACTIONS} are expected")
        self._steps = 0
        self._trial_return = 0.0
        return self._observation(self._level.reset()), {}

    def _observation(self, timestep: Any) -> npt.NDArray[np.float32]:
        observation = np.asarray(timestep.observation["symbolic_obs"], np.float32)
        if observation.shape != (NUM_OBSERVATIONS,):
            raise ValueError(
                f"dm_alchemy observed the shape {observation.shape}, and ({NUM_OBSERVATIONS},) is expected"
            )
        return observation

    def step(self, action: int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """One action; the class docstring lists them."""
        if self._level is None:
            raise RuntimeError("SymbolicAlchemy.step needs a running episode: call reset() first")
        if not 0 <= action < NUM_ACTIONS:
            raise ValueError(f"action must be from 0 to {NUM_ACTIONS - 1}, got {action}")
        timestep = self._level.step(int(action))
        reward = float(timestep.reward or 0.0)
        info: dict[str, Any] = {}
        self._trial_return += reward
        self._steps += 1
        done = bool(timestep.last())
        if done or self._steps % STEPS_PER_TRIAL == 0:
            trial = (self._steps - 1) // STEPS_PER_TRIAL
            info[f"{AMAGO_ENV_LOG_PREFIX} Trial {trial} Return"] = self._trial_return
            self._trial_return = 0.0
        if done:
            self._level = None
        return self._observation(timestep), reward, done, done, info
