"""Decoded trajectories kept in memory, so that a small file is opened once and not at every draw."""

from __future__ import annotations

from amago.hindsight import FrozenTraj

OVERHEAD = 2048
"""Bytes that the Python objects around a trajectory's arrays take, counted with every entry."""


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
        self._trajs: dict[str, tuple[FrozenTraj, int]] = {}

    def __len__(self) -> int:
        """Number of trajectories held."""
        return len(self._trajs)

    def get(self, path: str) -> FrozenTraj | None:
        """The trajectory of the file at `path`, its arrays read-only; None if it is not held."""
        entry = self._trajs.get(path)
        return entry[0] if entry is not None else None

    def has_room_for(self, nbytes: int) -> bool:
        """Whether a trajectory of `nbytes` would be taken."""
        return self.used_bytes + nbytes + OVERHEAD <= self.max_bytes

    def put(self, path: str, traj: FrozenTraj) -> None:
        """Holds `traj`, whose arrays become read-only, if there is room; replaces what was held for `path`."""
        arrays = list(traj.to_dict().values())
        nbytes = sum(array.nbytes for array in arrays)
        self.drop(path)
        if not self.has_room_for(nbytes):
            return
        for array in arrays:
            array.setflags(write=False)
        self._trajs[path] = (traj, nbytes + OVERHEAD)
        self.used_bytes += nbytes + OVERHEAD

    def drop(self, path: str) -> None:
        """Lets go of the trajectory of `path`, if it is held."""
        entry = self._trajs.pop(path, None)
        if entry is not None:
            self.used_bytes -= entry[1]

    def clear(self) -> None:
        """Lets go of everything."""
        self._trajs.clear()
        self.used_bytes = 0
