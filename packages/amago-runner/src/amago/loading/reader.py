"""Reads drawn trajectory files: small ones once, large ones only in the part that is asked for."""

from __future__ import annotations

import errno
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import numpy as np

from amago.hindsight import CorruptTrajectoryError, FrozenTraj
from amago.hindsight.layout import (
    FileIdentity,
    TrajectoryLayout,
    corruption_named,
    identity_of,
    opened_trajectory,
    read_layout,
)
from amago.hindsight.stored_array import Source
from amago.hindsight.structures import Structures
from amago.loading.cache import TrajCache
from amago.loading.sample import window_bounds
from amago.loading.windows import FileWindow, MemoryWindow, Spec, Window, content_of, spec_of_layout

SMALL_BYTES = 1 << 20
"""Trajectories up to this size are read whole and cached; of larger ones only the window, at every draw."""

SHARE_OF_CACHE = 8
"""Compressed files, whose windows are costly, are cached up to this fraction of the cache."""

KEPT_LAYOUTS = 1 << 14
"""Files whose headers are remembered, beside the cache, at about 2 KB each. Files are drawn at random, so that the
first ones are as good as any."""

USUAL_FILES = 64
"""Files that must agree in their arrays before one that differs is taken for a stray."""

LOOKED_AT = 80
"""Files whose headers are looked at to learn what is usual; where fewer than `USUAL_FILES` agree, nothing is."""

KEPT_KINDS = 16
"""Sets of arrays of which an example is remembered."""


class StrayTrajectoryError(CorruptTrajectoryError):
    """A trajectory whose arrays are others than those of all before it.

    Args:
        path: of the file.
        spec: its arrays.
        usual_path: one of the others.
        usual: their arrays.
    """

    def __init__(self, path: str, spec: Spec, usual_path: str, usual: Spec) -> None:
        super().__init__(
            f"{path} holds other arrays than the {USUAL_FILES} files read before it, such as {usual_path}; only "
            f"one side has {differences(spec, usual)}"
        )
        self.path, self.spec, self.usual_path, self.usual = path, spec, usual_path, usual

    def __reduce__(self) -> tuple[type[StrayTrajectoryError], tuple[str, Spec, str, Spec]]:
        return type(self), (self.path, self.spec, self.usual_path, self.usual)


class Usual(NamedTuple):
    """The arrays that files usually have, and one such file."""

    spec: Spec
    path: str


class Known(NamedTuple):
    """What is remembered of a file's headers."""

    layout: TrajectoryLayout
    spec: Spec


class TrajReader:
    """Reads files by path, and remembers what `drop` does not make it forget.

    All methods raise `CorruptTrajectoryError` for a file that is no trajectory, or none like all the others, and
    `OSError` for one that is gone; `whole` also `TrajectoryTooLargeError`.

    Args:
        cache_bytes: memory for decoded trajectories.

    Attributes:
        kinds: a file for each of the first sets of arrays that were met and not dropped since.
        told: what another process has found to be usual, which holds from the first file on.
    """

    def __init__(self, cache_bytes: int) -> None:
        self.cache = TrajCache(cache_bytes)
        self._lengths: dict[str, int] = {}
        self._layouts: dict[str, Known] = {}
        self._structures = Structures()
        self.kinds: dict[Spec, str] = {}
        self.told: Usual | None = None
        self._usual: Spec | None = None
        self._of_usual: set[str] = set()

    def length(self, path: str) -> int:
        """T, the transitions of the file, at least 1."""
        length = self._lengths.get(path)
        if length is None:
            with self._looked_into(path) as (known, _):
                length = self._lengths[path] = known.layout.length
        return length

    def whole(self, path: str) -> FrozenTraj:
        """The whole trajectory, its arrays the caller's own."""
        entry = self.cache.get(path)
        if entry is None:
            with self._looked_into(path) as (known, source):
                traj = known.layout.read_whole(source)
            if self._is_worth_caching(known.layout):
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
        known = self._layouts.get(path)
        if known is None or not known.layout.is_direct or self._is_worth_caching(known.layout):
            with self._looked_into(path) as (known, source):
                layout, spec = known
                start, stop = window_bounds(layout.length, length, padded_sampling, rng)
                if self._is_worth_caching(layout):
                    entry = self.cache.put(path, layout.read_whole(source))
                    return MemoryWindow(entry.arrays, entry.spec, start, stop)
                if not layout.is_direct:
                    return MemoryWindow.of(layout.read(source, start, stop))
                if isinstance(source, io.BytesIO):
                    return FileWindow(path, layout, spec, start, stop, on_loss, source)
        else:
            layout, spec = known
            start, stop = window_bounds(layout.length, length, padded_sampling, rng)
        return FileWindow(path, layout, spec, start, stop, on_loss)

    def drop(self, path: str) -> None:
        """Forgets what is known of the file, because it is gone or another took its place."""
        self.cache.drop(path)
        self._lengths.pop(path, None)
        self._layouts.pop(path, None)
        self._of_usual.discard(path)
        for spec in [spec for spec, example in self.kinds.items() if example == path]:
            others = (other for other, known in self._layouts.items() if known.spec == spec)
            if (another := next(others, None)) is not None:
                self.kinds[spec] = another
            else:
                del self.kinds[spec]

    def _is_worth_caching(self, layout: TrajectoryLayout) -> bool:
        most = SMALL_BYTES if layout.is_direct else max(SMALL_BYTES, self.cache.max_bytes // SHARE_OF_CACHE)
        return layout.nbytes <= most and self.cache.has_room_for(layout.nbytes)

    @contextmanager
    def _looked_into(self, path: str) -> Iterator[tuple[Known, Source]]:
        """What the headers say, and the open file, or its content if it is small."""
        with opened_trajectory(path) as file:
            identity = identity_of(file)
            source = content_of(file, identity)
            known = self._layouts.get(path)
            if known is None:
                known = self._first_look(path, source, identity)
            elif known.layout.identity != identity:
                raise OSError(errno.ESTALE, "another file took its place", path)
            yield known, source

    def _first_look(self, path: str, source: Source, identity: FileIdentity) -> Known:
        if isinstance(source, io.BytesIO):
            with corruption_named(path):
                layout = self._structures.layout(source.getvalue(), path, identity)
        else:
            layout = read_layout(source, path, identity)
        if layout.length < 1:
            raise CorruptTrajectoryError(f"{path} holds no transition")
        known = Known(layout, spec_of_layout(layout))
        self._check_that_it_is_usual(path, known.spec)
        if len(self._layouts) < KEPT_LAYOUTS:
            self._layouts[path] = known
        return known

    def _check_that_it_is_usual(self, path: str, spec: Spec) -> None:
        """Raises CorruptTrajectoryError for a file that cannot share a batch with the many before it."""
        if spec not in self.kinds and len(self.kinds) < KEPT_KINDS:
            self.kinds[spec] = path
        if self._usual is None or not self._of_usual:
            self._usual = spec
        if spec == self._usual and len(self._of_usual) < USUAL_FILES:
            self._of_usual.add(path)
        if self.told is not None:
            expected = self.told.spec
        else:
            expected = self._usual if len(self._of_usual) >= USUAL_FILES else spec
        if spec is not expected and spec != expected:
            usual = self.told or self.usual()
            assert usual is not None
            raise StrayTrajectoryError(path, spec, usual.path, usual.spec)

    def usual(self) -> Usual | None:
        """What this reader has found to be usual; None if it has not met enough files that agree."""
        if self._usual is None or len(self._of_usual) < USUAL_FILES:
            return None
        return Usual(self._usual, min(self._of_usual))

    def tell_usual(self, usual: Usual | None) -> None:
        """Takes what another process has found to be usual, and forgets files that are not."""
        before, self.told = self.told, usual
        if usual is not None and (before is None or before.spec != usual.spec):
            for path in [path for path, known in self._layouts.items() if known.spec != usual.spec]:
                self.drop(path)

    def learn_usual(self, paths: Sequence[str]) -> None:
        """Looks at the headers of files, unless it is known already what is usual; judges none of them."""
        if self.usual() is not None:
            return
        kinds: dict[Spec, set[str]] = {} if self._usual is None else {self._usual: set(self._of_usual)}
        for path in paths:
            known = self._layouts.get(path)
            with suppress(OSError, CorruptTrajectoryError):
                if known is None:
                    with opened_trajectory(path) as file:
                        spec = spec_of_layout(read_layout(file, path))
                else:
                    spec = known.spec
                kinds.setdefault(spec, set()).add(path)
                if len(kinds[spec]) == USUAL_FILES:
                    self._usual, self._of_usual = spec, kinds[spec]
                    return


def differences(spec: Spec, other: Spec) -> str:
    """The arrays that only one of the two has, in words."""
    return ", ".join(sorted(f"{field} {field.dtype}{field.row_shape}" for field in set(spec) ^ set(other)))
