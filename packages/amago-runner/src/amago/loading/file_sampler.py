"""Draws random files from the index of a replay buffer and reads them, completely or one window at a time."""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from amago.hindsight import CorruptTrajectoryError, FrozenTraj
from amago.hindsight.trajectory_files import TrajectoryHeader, read_header, read_rows
from amago.loading.file_index import FileIndex, TrajFile
from amago.loading.rl_data import RLData, window_bounds

T = TypeVar("T")
Weigh = Callable[[Sequence[TrajFile]], ArrayLike | None]
Schema = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]

CACHED_BYTES = 1 << 20
"""Trajectories up to this size are read whole and cached; of larger ones each sample reads its window."""

UNSLICEABLE_SHARE = 8
"""Compressed files are read whole for every window, so they are cached up to this fraction of the cache."""

KEPT_HEADERS = 1 << 12
"""Number of files whose headers are kept in memory, at about 2 KB each."""

MAX_SCHEMA_MISMATCHES = 16
"""Files with other arrays that are quarantined before training stops: more are not an accident."""


FILE_ERRORS = (CorruptTrajectoryError, FileNotFoundError, PermissionError, IsADirectoryError)
"""Errors that concern a single file; any other error, e.g. too many open files, stops training."""


class SchemaMismatchError(CorruptTrajectoryError):
    """The arrays of a trajectory file differ from those of the buffer's other files."""


class TrajectoryCache:
    """Least-recently-used cache of decoded trajectories.

    Args:
        max_bytes: total size of the cached arrays; 0 turns the cache off.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._bytes = 0
        self._trajs: OrderedDict[TrajFile, FrozenTraj] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        # Loader workers that are not forked start with an empty cache.
        return {"max_bytes": self.max_bytes, "_bytes": 0, "_trajs": OrderedDict()}

    def get(self, file: TrajFile) -> FrozenTraj | None:
        """The trajectory, with read-only arrays, or None."""
        traj = self._trajs.get(file)
        if traj is not None:
            self._trajs.move_to_end(file)
        return traj

    def put(self, file: TrajFile, traj: FrozenTraj) -> None:
        """Adds a trajectory, makes its arrays read-only, and evicts the least recently used ones."""
        for array in traj.to_dict().values():
            array.setflags(write=False)
        self._trajs[file] = traj
        self._bytes += traj.nbytes
        while self._bytes > self.max_bytes:
            _, evicted = self._trajs.popitem(last=False)
            self._bytes -= evicted.nbytes


class FileSampler:
    """Draws files from an index and reads them.

    A file that another process deleted is skipped. A file that is damaged, or whose arrays differ from those
    of the reference file, goes to the quarantine. In both cases another file is drawn. The reference is the
    first file that this process wrote, which fits the environment; else the first readable file of the index.

    Args:
        index: the files.
        cache_bytes: memory for decoded trajectories.
    """

    def __init__(self, index: FileIndex, cache_bytes: int) -> None:
        self.index = index
        self.cache = TrajectoryCache(cache_bytes)
        self._headers: dict[TrajFile, TrajectoryHeader] = {}
        self._lengths: dict[TrajFile, int] = {}
        self.written_file: str | None = None
        self._reference: tuple[str, Schema] | None = None
        self._mismatches = 0
        self._cumulative: NDArray[np.float64] = np.zeros(0)
        self._weighed: list[TrajFile] | None = None  # the list that `_cumulative` belongs to

    def draw(self, read: Callable[[TrajFile], T], rng: np.random.Generator, weigh: Weigh | None) -> T:
        """Reads a random file.

        Args:
            read: reads the file that was drawn.
            rng: source of the draw.
            weigh: returns the weights of all files; None for equal weights.

        Raises:
            RuntimeError: if no file can be read, or more than `MAX_SCHEMA_MISMATCHES` have other arrays.
            ValueError, TypeError: if the weights do not fit the files.
            OSError: if reading fails for another reason than the file itself.
        """
        failure: Exception | None = None
        refreshed = False
        while True:
            file = self._choose(rng, weigh)
            if file is None:
                if refreshed:
                    raise self._nothing_to_read(failure) from failure
                self.index.refresh(force=True)
                refreshed = True
                continue
            try:
                return read(file)
            except FILE_ERRORS as error:
                failure = error
                self.handle_unreadable(file, error)

    def handle_unreadable(self, file: TrajFile, error: Exception) -> None:
        """Skips a deleted file; quarantines any other.

        Raises:
            RuntimeError: if too many files have other arrays than the reference file.
        """
        if isinstance(error, FileNotFoundError):
            self.index.discard(file)
            return
        if isinstance(error, SchemaMismatchError):
            self._mismatches += 1
            if self._mismatches > MAX_SCHEMA_MISMATCHES:
                raise RuntimeError(
                    f"more than {MAX_SCHEMA_MISMATCHES} files of {file.folder} do not fit the others: {error}. If "
                    "the environment changed, use another dset_name, or remove the files of the old one. Files "
                    f"that were moved are in {self.index.quarantine_folder}."
                ) from error
        self.index.quarantine(file, str(error))

    def read_whole(self, file: TrajFile) -> FrozenTraj:
        """The whole trajectory in writable arrays."""
        cached = self.cache.get(file)
        if cached is not None:
            return FrozenTraj.from_dict({name: array.copy() for name, array in cached.to_dict().items()})
        header = self._header(file)
        return FrozenTraj.from_dict(read_rows(file.path, header, 0, header.length))

    def read_window(
        self, file: TrajFile, length: int, padded_sampling: str, rng: np.random.Generator
    ) -> RLData:
        """A random window of at most `length` transitions, see `window_bounds`; its arrays may be read-only."""
        traj = self.cache.get(file)
        if traj is None:
            header = self._header(file)
            if header.nbytes > self._max_cached_bytes(header):
                start, stop = window_bounds(header.length, length, padded_sampling, rng)
                return RLData.unchecked(read_rows(file.path, header, start, stop, writable=False))
            traj = FrozenTraj.from_dict(read_rows(file.path, header, 0, header.length))
            self.cache.put(file, traj)
        start, stop = window_bounds(len(traj), length, padded_sampling, rng)
        return RLData.window(traj, start, stop)

    def length(self, file: TrajFile) -> int:
        """T, the number of transitions in a file, at least 1."""
        length = self._lengths.get(file)
        if length is None:
            length = self._lengths[file] = self._header(file).length
        return length

    def refresh(self, *, force: bool = False) -> None:
        """Refreshes the index and asks for new weights at the next draw."""
        self.index.refresh(force=force)
        self._weighed = None
        if len(self._lengths) > 2 * len(self.index.files):
            present = set(self.index.files)
            self._lengths = {file: length for file, length in self._lengths.items() if file in present}

    def _max_cached_bytes(self, header: TrajectoryHeader) -> int:
        limit = CACHED_BYTES
        if not header.is_sliceable:
            limit = max(limit, self.cache.max_bytes // UNSLICEABLE_SHARE)
        return min(limit, self.cache.max_bytes)

    def _choose(self, rng: np.random.Generator, weigh: Weigh | None) -> TrajFile | None:
        files = self.index.files
        if weigh is None:
            return files[int(rng.random() * len(files))] if files else None
        while files and self._weighed is not files:  # weighing may remove unreadable files
            self._weighed = files
            self._cumulative = _cumulative(weigh(files), len(files))
            files = self.index.files
        if not files:
            return None
        drawn = rng.random() * self._cumulative[-1]
        return files[int(np.searchsorted(self._cumulative, drawn, side="right"))]

    def _header(self, file: TrajFile) -> TrajectoryHeader:
        header = self._headers.get(file)
        if header is None:
            header = read_header(file.path)
            if header.length < 1:
                raise CorruptTrajectoryError(f"{file.path} holds no transition")
            self._check_schema(file, header.schema)
            self._headers[file] = header
            if len(self._headers) > KEPT_HEADERS:
                del self._headers[next(iter(self._headers))]
        return header

    def _check_schema(self, file: TrajFile, schema: Schema) -> None:
        """Raises SchemaMismatchError unless the file has the arrays of the reference file."""
        path, expected = self.reference() or (file.path, schema)
        if schema != expected:
            raise SchemaMismatchError(f"{file.path} differs from {path}: {_differences(schema, expected)}")

    def reference(self) -> tuple[str, Schema] | None:
        """Path and schema of the file that all others must match; None if no file can be read."""
        if self._reference is None:
            paths = [] if self.written_file is None else [self.written_file]
            for path in itertools.chain(paths, (file.path for file in self.index.files)):
                with contextlib.suppress(CorruptTrajectoryError, OSError):  # handled when the file is drawn
                    self._reference = path, read_header(path).schema
                    break
        return self._reference

    def set_reference(self, reference: tuple[str, Schema] | None) -> None:
        """Takes over the reference file of another process."""
        self._reference = reference

    def _nothing_to_read(self, failure: Exception | None) -> RuntimeError:
        buffer = self.index.quarantine_folder.parent
        if failure is None:
            return RuntimeError(
                f"there are no trajectory files in {buffer}: collect some first, or wait until ready_for_training"
            )
        return RuntimeError(f"no trajectory file in {buffer} can be read: {failure}")


def _cumulative(weights: ArrayLike | None, count: int) -> NDArray[np.float64]:
    if weights is None:
        return np.arange(1.0, count + 1)
    try:
        array = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"sampling_weights must return numbers, one per file, not {weights!r}") from error
    if array.shape != (count,):
        raise ValueError(
            f"sampling_weights must return {count} weights, one per file, not the shape {array.shape}"
        )
    if not (np.isfinite(array).all() and (array >= 0).all() and array.any()):
        raise ValueError("sampling_weights must be finite, at least 0, and not all 0")
    # Divided by the largest, so that the sum of huge weights stays finite.
    cumulative: NDArray[np.float64] = np.cumsum(array / array.max())
    return cumulative


def _differences(schema: Schema, expected: Schema) -> str:
    names = [name for name in sorted({*schema, *expected}) if schema.get(name) != expected.get(name)]
    return "; ".join(
        f"{name} is {_described(schema, name)} instead of {_described(expected, name)}" for name in names
    )


def _described(schema: Schema, name: str) -> str:
    if name not in schema:
        return "missing"
    shape, dtype = schema[name]
    return f"{dtype}{shape}"
