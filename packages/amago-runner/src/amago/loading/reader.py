"""Reads drawn trajectory files: small ones once, large ones only in the part that is asked for."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from amago.hindsight import CorruptTrajectoryError, FrozenTraj
from amago.hindsight.layout import TrajectoryLayout, identity_of, opened_trajectory, read_layout
from amago.loading.cache import TrajCache
from amago.loading.sample import window_bounds
from amago.loading.windows import FileWindow, MemoryWindow, Spec, Window, spec_of_layout

SMALL_BYTES = 1 << 20
"""Trajectories up to this size are read whole and cached; of larger ones only the window, at every draw."""

SHARE_OF_CACHE = 8
"""Compressed files, whose windows are costly, are cached up to this fraction of the cache."""

KEPT_LAYOUTS = 1 << 14
"""Files whose headers are remembered. Files are drawn at random, so that the first ones are as good as any."""


class TrajReader:
    """Reads files by path, and remembers what `drop` does not make it forget.

    All methods raise `CorruptTrajectoryError` for a file that is no trajectory and `OSError` for one that is gone.

    Args:
        cache_bytes: memory for decoded trajectories.
    """

    def __init__(self, cache_bytes: int) -> None:
        self.cache = TrajCache(cache_bytes)
        self._lengths: dict[str, int] = {}
        self._layouts: dict[str, tuple[TrajectoryLayout, Spec]] = {}

    def length(self, path: str) -> int:
        """T, the transitions of the file, at least 1."""
        length = self._lengths.get(path)
        if length is None:
            length = self._lengths[path] = self._layout(path)[0].length
        return length

    def whole(self, path: str) -> FrozenTraj:
        """The whole trajectory, its arrays the caller's own."""
        entry = self.cache.get(path)
        if entry is None:
            layout, _ = self._layout(path)
            traj = _read(path, layout, 0, layout.length)
            if self._is_worth_caching(layout):
                self.cache.put(path, traj)
        else:
            traj = entry.traj
        if traj.rews.flags.writeable:
            return traj
        return FrozenTraj.from_dict({name: array.copy() for name, array in traj.to_dict().items()})

    def window(
        self,
        path: str,
        length: int,
        padded_sampling: str,
        rng: np.random.Generator,
        on_loss: Callable[[Exception], Window],
    ) -> Window:
        """A random window as `window_bounds` draws it, which may still have to read its file; see `FileWindow`."""
        entry = self.cache.get(path)
        if entry is not None:
            start, stop = window_bounds(entry.length, length, padded_sampling, rng)
            return MemoryWindow(entry.arrays, entry.spec, start, stop)
        layout, spec = self._layout(path)
        start, stop = window_bounds(layout.length, length, padded_sampling, rng)
        if self._is_worth_caching(layout):
            entry = self.cache.put(path, _read(path, layout, 0, layout.length))
            return MemoryWindow(entry.arrays, entry.spec, start, stop)
        if layout.is_direct:
            return FileWindow(path, layout, spec, start, stop, on_loss)
        return MemoryWindow.of(_read(path, layout, start, stop))

    def drop(self, path: str) -> None:
        """Forgets what is known of the file, because it is gone or another took its place."""
        self.cache.drop(path)
        self._lengths.pop(path, None)
        self._layouts.pop(path, None)

    def _is_worth_caching(self, layout: TrajectoryLayout) -> bool:
        most = SMALL_BYTES if layout.is_direct else max(SMALL_BYTES, self.cache.max_bytes // SHARE_OF_CACHE)
        return layout.nbytes <= most and self.cache.has_room_for(layout.nbytes)

    def _layout(self, path: str) -> tuple[TrajectoryLayout, Spec]:
        known = self._layouts.get(path)
        if known is None:
            with opened_trajectory(path) as file:
                layout = read_layout(file, path)
            if layout.length < 1:
                raise CorruptTrajectoryError(f"{path} holds no transition")
            known = layout, spec_of_layout(layout)
            if len(self._layouts) < KEPT_LAYOUTS:
                self._layouts[path] = known
        return known


def _read(path: str, layout: TrajectoryLayout, start: int, stop: int) -> FrozenTraj:
    with opened_trajectory(path) as file:
        if identity_of(file) != layout.identity:
            raise FileNotFoundError(f"another file took the place of {path}")
        return layout.read(file, start, stop)
