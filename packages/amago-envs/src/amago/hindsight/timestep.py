"""Timestep: the observation, previous action and reward that environments return.

Shapes: E = environments in one AMAGOEnv (`batched_envs`), A = width of the action representation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(slots=True, eq=False)
class Timestep:
    """An observation, and the action and reward that led to it.

    Args:
        obs: observation by key, each (E, *shape) in the dtype of its space.
        prev_action: (E, A) float32, representation of the executed action: one-hot (Discrete),
            concatenated one-hots (MultiDiscrete), zeros and ones (MultiBinary) or values in [-1, 1] (Box).
            Zero after a reset.
        reward: (E,) float32, the reward that came with `obs`; zero after a reset.
        time_idx: (E,) int64, steps since the episode's start; zero after a reset.
        terminal: (E,) bool, whether the environment terminated; False for truncation.
        batched_envs: E.
    """

    obs: dict[str, Array]
    prev_action: Array
    reward: Array
    time_idx: Array
    terminal: Array
    batched_envs: int

    def as_input(self) -> tuple[dict[str, Array], Array, Array]:
        """Policy inputs `(obs, rl2s (E, 1 + A) float32, time_idxs (E, 1) int64)`.

        `rl2s` is the previous reward followed by the previous action.
        """
        num_envs, width = self.prev_action.shape
        rl2s = np.empty((num_envs, 1 + width), dtype=np.float32)
        rl2s[:, 0] = self.reward
        rl2s[:, 1:] = self.prev_action
        return self.obs, rl2s, self.time_idx.reshape(num_envs, 1)

    def create_reset_version(self, reset_idxs: Sequence[int] | Array) -> "Timestep":
        """A copy in which the rows `reset_idxs` start an episode: reward, action, time and terminal are zero.

        Args:
            reset_idxs: row numbers, or a bool mask (E,).
        """
        rows = np.asarray(reset_idxs)
        if rows.dtype != np.bool_:
            rows = rows.astype(np.int64)
        fresh = self.copy()
        fresh.prev_action[rows] = 0.0
        fresh.reward[rows] = 0.0
        fresh.time_idx[rows] = 0
        fresh.terminal[rows] = False
        return fresh

    def copy(self) -> "Timestep":
        """A timestep that shares no memory with this one."""
        return Timestep(
            obs={key: array.copy() for key, array in self.obs.items()},
            prev_action=self.prev_action.copy(),
            reward=self.reward.copy(),
            time_idx=self.time_idx.copy(),
            terminal=self.terminal.copy(),
            batched_envs=self.batched_envs,
        )


def split_batched_timestep(t: Timestep) -> list[Timestep]:
    """Splits a timestep into E timesteps with `batched_envs=1`.

    Each owns its memory, so that keeping one does not keep the whole batch alive.
    """
    return [
        Timestep(
            obs={key: array[row : row + 1].copy() for key, array in t.obs.items()},
            prev_action=t.prev_action[row : row + 1].copy(),
            reward=t.reward[row : row + 1].copy(),
            time_idx=t.time_idx[row : row + 1].copy(),
            terminal=t.terminal[row : row + 1].copy(),
            batched_envs=1,
        )
        for row in range(t.batched_envs)
    ]
