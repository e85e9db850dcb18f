"""Decoded trajectories kept in memory, so that a small file is opened once and not at every draw."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from amago.hindsight import FrozenTraj
from amago.loading.windows import Spec, in_order

OVERHEAD = 2048
"""Bytes that the Python objects around a trajectory's arrays take, counted with every entry."""


class Entry(NamedTuple):
    """A trajectory, its arrays in the order of their spec, its transitions, and what it takes of the memory."""

    traj: FrozenTraj
    arrays: list[NDArray[Any]]
    spec: Spec
    length: int
    nbytes: int


class TrajCache:
    """Trajectories by path, up to a number of bytes.

    A full cache takes nothing more, and does not evict: files are drawn at random, so that no entry is more
    likely to be asked for than another. Room comes back when files leave the buffer and are `drop`ped.

    Args:
        max_bytes: the most bytes to hold; 0 holds nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._trajs: dict[str, Entry] = {}

    def __len__(self) -> int:
        """Number of trajectories held."""
        return len(self._trajs)

    def __getstate__(self) -> dict[str, Any]:
        # Loader workers that are not forked would be sent all of it, and they have caches of their own.
        return {"max_bytes": self.max_bytes, "used_bytes": 0, "_trajs": {}}

    def get(self, path: str) -> Entry | None:
        """The trajectory of the file at `path`, its arrays read-only; None if it is not held."""
        return self._trajs.get(path)

    def has_room_for(self, nbytes: int) -> bool:
        """Whether a trajectory of `nbytes` would be taken."""
        return self.used_bytes + nbytes + OVERHEAD <= self.max_bytes

    def put(self, path: str, traj: FrozenTraj) -> Entry:
        """The entry of `traj`, held if there is room, and then read-only; replaces what was held for `path`."""
        arrays, spec = in_order(traj)
        nbytes = sum(array.nbytes for array in arrays)
        self.drop(path)
        entry = Entry(traj, arrays, spec, len(traj), nbytes + OVERHEAD)
        if not self.has_room_for(nbytes):
            return entry
        for array in arrays:
            array.setflags(write=False)
        self._trajs[path] = entry
        self.used_bytes += entry.nbytes
        return entry

    def drop(self, path: str) -> None:
        """Lets go of the trajectory of `path`, if it is held."""
        entry = self._trajs.pop(path, None)
        if entry is not None:
            self.used_bytes -= entry.nbytes

    def clear(self) -> None:
        """Lets go of everything."""
        self._trajs.clear()
        self.used_bytes = 0
