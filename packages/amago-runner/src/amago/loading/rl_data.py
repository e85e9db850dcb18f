"""RLData: a training sample, and how windows are sampled from trajectories.

Shapes: T transitions, T+1 timesteps, A width of the action representation, L length of a window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amago.hindsight import FrozenTraj, Trajectory
from amago.hindsight.trajectory import FIELD_DTYPES, OBS_KEY_PREFIX

Array = NDArray[Any]

PADDED_SAMPLING = ("none", "both", "left", "right")
"""Ends of a trajectory over which windows may extend, see `window_bounds`."""


def check_padded_sampling(padded_sampling: str) -> str:
    """Returns `padded_sampling`; raises ValueError if it is not in `PADDED_SAMPLING`."""
    if padded_sampling not in PADDED_SAMPLING:
        raise ValueError(
            f"padded_sampling must be one of {', '.join(PADDED_SAMPLING)}, not {padded_sampling!r}"
        )
    return padded_sampling


def window_bounds(
    transitions: int, length: int, padded_sampling: str, rng: np.random.Generator
) -> tuple[int, int]:
    """Samples a window of at most `length` out of `transitions` transitions.

    The start is uniform over the integers [0, T-L] ("none"), [-L+1, T-2] ("both"), [-L+1, T-L] ("left") or
    [0, T-2] ("right"), and the window is clipped to the trajectory. Windows that extend over an end sample the
    transitions there as often as those in the middle. If T <= L, the window is the whole trajectory and `rng` is
    not used.

    Args:
        transitions: T, at least 1.
        length: L, at least 1.
        padded_sampling: one of `PADDED_SAMPLING`.
        rng: source of the draw.

    Returns:
        start, stop: the transitions [start, stop), with 0 <= start < stop <= T.
    """
    if transitions <= length:
        return 0, transitions
    overhangs_left = padded_sampling in ("left", "both")
    overhangs_right = padded_sampling in ("right", "both")
    low = 1 - length if overhangs_left else 0
    high = transitions - 2 if overhangs_right else transitions - length
    start = low + int(rng.random() * (high + 1 - low))
    return max(start, 0), min(start + length, transitions)


class RLData:
    """A trajectory of T transitions and T+1 timesteps.

    Args:
        obs: arrays of the observation by key, (T+1, ...); or a whole `FrozenTraj` or `Trajectory`, alone.
        rews: (T, 1) float32.
        dones: (T, 1) bool, True where the environment terminated.
        actions: (T, A) float32, the representation of the actions that were executed.
        time_idxs: (T+1, 1) int64, index of each timestep in its episode.
        rl2s: (T+1, 1 + A) float32, previous reward and action. None computes them from `rews` and `actions`, as of
            the beginning of an episode: zeros first.

    Raises:
        ValueError: if shapes are inconsistent; the message names the array.
    """

    __slots__ = ("actions", "dones", "obs", "rews", "rl2s", "time_idxs")

    def __init__(
        self,
        obs: Mapping[str, Any] | FrozenTraj | Trajectory,
        rews: Any = None,
        dones: Any = None,
        actions: Any = None,
        time_idxs: Any = None,
        rl2s: Any = None,
    ) -> None:
        if isinstance(obs, Trajectory):
            obs = obs.freeze()
        if isinstance(obs, FrozenTraj):
            traj = obs
            obs, rews, dones, actions = traj.obs, traj.rews, traj.dones, traj.actions
            time_idxs, rl2s = traj.time_idxs, traj.rl2s
        if not isinstance(obs, Mapping):
            raise TypeError(
                f"obs must be a mapping of keys to arrays, a FrozenTraj or a Trajectory, not {obs!r}"
            )
        given = {"rews": rews, "dones": dones, "actions": actions, "time_idxs": time_idxs}
        if missing := [name for name, value in given.items() if value is None]:
            raise TypeError(f"RLData is missing the arguments {', '.join(missing)}")
        self.rews: Array = _rows("rews", rews, np.float32)
        self.dones: Array = _rows("dones", dones, np.bool_)
        self.actions: Array = _rows("actions", actions, np.float32)
        self.time_idxs: Array = _rows("time_idxs", time_idxs, np.int64)
        self.obs: dict[str, Array] = {key: np.asarray(value) for key, value in obs.items()}
        if rl2s is None:
            self.rl2s: Array = np.zeros((len(self.rews) + 1, 1 + self.actions.shape[1]), np.float32)
        else:
            self.rl2s = _rows("rl2s", rl2s, np.float32)
        if not len(self):
            raise ValueError("rews must hold at least one transition, not none")
        FrozenTraj(self.obs, self.rl2s, self.time_idxs, self.rews, self.dones, self.actions)  # checks shapes
        if rl2s is None:
            self.rl2s[1:, :1], self.rl2s[1:, 1:] = self.rews, self.actions

    @classmethod
    def window(cls, traj: FrozenTraj | RLData, start: int, stop: int) -> RLData:
        """Transitions [start, stop) and timesteps [start, stop + 1) of `traj`, as views, without checks."""
        data = cls.__new__(cls)
        data.obs = {key: value[start : stop + 1] for key, value in traj.obs.items()}
        data.rl2s = traj.rl2s[start : stop + 1]
        data.time_idxs = traj.time_idxs[start : stop + 1]
        data.rews = traj.rews[start:stop]
        data.dones = traj.dones[start:stop]
        data.actions = traj.actions[start:stop]
        return data

    @classmethod
    def unchecked(cls, arrays: Mapping[str, Array]) -> RLData:
        """Arrays named as in a trajectory file, without checks."""
        data = cls.__new__(cls)
        data.obs = {
            name[len(OBS_KEY_PREFIX) :]: array for name, array in arrays.items() if name not in FIELD_DTYPES
        }
        for name in FIELD_DTYPES:
            setattr(data, name, arrays[name])
        return data

    def __len__(self) -> int:
        """T, the number of transitions."""
        return len(self.rews)

    def random_slice(
        self, length: int, padded_sampling: str = "none", rng: np.random.Generator | None = None
    ) -> RLData:
        """A random window of at most `length` transitions, see `window_bounds`.

        Args:
            length: L, maximum number of transitions; the slice holds one more timestep.
            padded_sampling: one of `PADDED_SAMPLING`.
            rng: source of the draw; None uses a new, unseeded generator.

        Raises:
            ValueError: if `length` is less than 1 or `padded_sampling` is unknown.
        """
        check_padded_sampling(padded_sampling)
        if length < 1:
            raise ValueError(f"length must be at least 1, not {length!r}")
        start, stop = window_bounds(len(self), length, padded_sampling, rng or np.random.default_rng())
        return RLData.window(self, start, stop)


def _rows(name: str, value: Any, dtype: type[np.generic]) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must hold numbers, not {array.dtype}")
    if dtype is np.bool_ and not ((array == 0) | (array == 1)).all():
        raise ValueError(f"{name} must hold True and False, not {np.unique(array)[:5]}")
    if array.ndim != 2:
        raise ValueError(f"{name} must have two axes, time and feature, not the shape {array.shape}")
    return array.astype(dtype, copy=False)
