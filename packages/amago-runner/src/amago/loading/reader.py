"""Reads drawn trajectory files: small ones once, large ones only in the part that is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from amago.hindsight import CorruptTrajectoryError, FrozenTraj, load_slice, load_trajectory, trajectory_length
from amago.loading.cache import TrajCache
from amago.loading.sample import RLData, window_bounds

WHOLE_FILE_BYTES = 1 << 20
"""Files up to this size are read whole and cached; of larger ones only the window is read, at every draw."""


class TrajReader:
    """Reads files by path, and remembers what `drop` does not make it forget.

    All methods raise `CorruptTrajectoryError` for a file that is no trajectory and `FileNotFoundError` for one
    that is gone.

    Args:
        cache_bytes: memory for decoded trajectories.
    """

    def __init__(self, cache_bytes: int) -> None:
        self.cache = TrajCache(cache_bytes)
        self._lengths: dict[str, int] = {}

    def length(self, path: str) -> int:
        """T, the transitions of the file, at least 1."""
        length = self._lengths.get(path)
        if length is None:
            length = trajectory_length(Path(path))
            if length < 1:
                raise CorruptTrajectoryError(f"{path} holds no transition")
            self._lengths[path] = length
        return length

    def whole(self, path: str) -> FrozenTraj:
        """The whole trajectory, its arrays the caller's own."""
        stored = self._cached(path)
        if stored is None:
            return _load(path)
        return FrozenTraj.from_dict({name: array.copy() for name, array in stored.to_dict().items()})

    def window(self, path: str, length: int, padded_sampling: str, rng: np.random.Generator) -> RLData:
        """A random window as `window_bounds` draws it; its arrays may be read-only views."""
        stored = self._cached(path)
        transitions = self.length(path) if stored is None else len(stored)
        start, stop = window_bounds(transitions, length, padded_sampling, rng)
        if stored is not None:
            return RLData.window(stored, start, stop)
        return RLData.window(load_slice(Path(path), start, stop), 0, stop - start)

    def drop(self, path: str) -> None:
        """Forgets what is known of the file, because it is gone or another took its place."""
        self.cache.drop(path)
        self._lengths.pop(path, None)

    def _cached(self, path: str) -> FrozenTraj | None:
        """The decoded file from memory, where it is put if it is small; None if it is to be read in part."""
        traj = self.cache.get(path)
        if traj is None:
            size = os.stat(path).st_size
            if size <= WHOLE_FILE_BYTES and self.cache.has_room_for(size):
                traj = _load(path)
                self.cache.put(path, traj)
        return traj


def _load(path: str) -> FrozenTraj:
    traj = load_trajectory(Path(path))
    if len(traj) < 1:
        raise CorruptTrajectoryError(f"{path} holds no transition")
    return traj
