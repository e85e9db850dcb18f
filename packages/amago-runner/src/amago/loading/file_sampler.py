"""Draws random files from the index of a replay buffer and reads them, completely or one window at a time."""

from __future__ import annotations

import contextlib
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch.utils.data import get_worker_info

from amago.hindsight import CorruptTrajectoryError, FrozenTraj
from amago.hindsight.trajectory_files import TrajectoryHeader, read_header, read_rows
from amago.loading.file_index import FileIndex, TrajFile
from amago.loading.rl_data import RLData, window_bounds

T = TypeVar("T")
Weights = Callable[[Sequence[TrajFile]], ArrayLike | None]
Schema = dict[str, str]

CACHED_BYTES = 1 << 20
"""Trajectories up to this size are read whole and cached; of larger ones each sample reads its window."""

COMPRESSED_SHARE = 8
"""Compressed files are read from the start for every window, so they are cached up to this share of the cache."""

KEPT_HEADERS = 1 << 12
"""Number of files whose headers are kept in memory, at about 2 KB each."""

MAX_SCHEMA_MISMATCHES = 16
"""Files with other arrays that are quarantined before training stops: more are not an accident."""

REFERENCE_CANDIDATES = 4 * MAX_SCHEMA_MISMATCHES
"""Readable files among which the reference file is chosen."""

FILE_ERRORS = (CorruptTrajectoryError, FileNotFoundError, PermissionError, IsADirectoryError)
"""Errors that concern a single file; any other error, e.g. too many open files, stops training."""


class SchemaMismatchError(CorruptTrajectoryError):
    """The arrays of a trajectory file differ from those of the buffer's other files."""


class TrajectoryCache:
    """Least-recently-used cache of decoded trajectories.

    Args:
        max_bytes: total size of the cached arrays, divided among the loader workers; 0 turns the cache off.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._trajs: OrderedDict[TrajFile, FrozenTraj] = OrderedDict()

    @property
    def max_bytes(self) -> int:
        """The share of this process."""
        worker = get_worker_info()
        return self._max_bytes if worker is None else self._max_bytes // worker.num_workers

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
    newest file of `fifo`, or else the first of `protected`, that holds arrays of the shapes that the environment
    writes; without `set_expected_shapes`, or if there is no such file, the newest readable one.

    Args:
        index: the files.
        weights: returns the sampling weights of all files; None for equal weights.
        cache_bytes: memory for decoded trajectories.
    """

    def __init__(self, index: FileIndex, weights: Weights, cache_bytes: int) -> None:
        self.index = index
        self.cache = TrajectoryCache(cache_bytes)
        self._weights = weights
        self._headers: dict[TrajFile, TrajectoryHeader] = {}
        self._lengths: dict[TrajFile, int] = {}
        self._reference: tuple[str, Schema] | None = None
        self._expected_shapes: dict[str, tuple[int, ...]] = {}
        self._mismatches = 0
        self._cumulative: NDArray[np.float64] | None = None
        self._weighed: list[TrajFile] | None = None  # the list that `_cumulative` belongs to

    def draw(self, read: Callable[[TrajFile], T], rng: np.random.Generator) -> T:
        """Draws a random file and returns what `read` returns for it.

        Raises:
            RuntimeError: if no file can be read, or more than `MAX_SCHEMA_MISMATCHES` have other arrays.
            ValueError, TypeError: if the weights do not fit the files.
            OSError: if reading fails for another reason than the file itself.
        """
        failure: Exception | None = None
        for _ in range(2):
            while (file := self._choose(rng)) is not None:
                try:
                    return read(file)
                except FILE_ERRORS as error:
                    failure = error
                    self.handle_unreadable(file, error)
            self.index.refresh()  # other processes may have written files since
        if failure is None:
            raise RuntimeError(
                f"there are no trajectory files in {self.index.buffer}: collect some first, or wait until "
                "ready_for_training"
            )
        raise RuntimeError(f"no trajectory file in {self.index.buffer} can be read: {failure}") from failure

    def handle_unreadable(self, file: TrajFile, error: Exception) -> None:
        """Skips a deleted file; quarantines any other.

        Raises:
            RuntimeError: if too many files have other arrays than the reference file.
        """
        if isinstance(error, FileNotFoundError):
            self.index.remove(file)
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
        header = self._header(file)
        return FrozenTraj.from_dict(read_rows(file.path, header, 0, header.length))

    def read_window(
        self, file: TrajFile, length: int, padded_sampling: str, rng: np.random.Generator
    ) -> RLData:
        """A random window of at most `length` transitions, see `window_bounds`; its arrays may be read-only."""
        traj = self.cache.get(file)
        if traj is None:
            header = self._header(file)
            max_bytes = self.cache.max_bytes
            largest = min(CACHED_BYTES, max_bytes) if header.is_sliceable else max_bytes // COMPRESSED_SHARE
            if header.nbytes > largest:
                start, stop = window_bounds(header.length, length, padded_sampling, rng)
                return RLData.unchecked(read_rows(file.path, header, start, stop, writable=False))
            traj = self.read_whole(file)
            self.cache.put(file, traj)
        start, stop = window_bounds(len(traj), length, padded_sampling, rng)
        return RLData.window(traj, start, stop)

    def length(self, file: TrajFile) -> int:
        """T, the number of transitions in a file, at least 1."""
        length = self._lengths.get(file)
        if length is None:
            length = self._lengths[file] = self._header(file).length
        return length

    def refresh(self) -> None:
        """Refreshes the index; the next draw asks for new weights."""
        self.index.refresh()
        if len(self._lengths) > 2 * len(self.index.files):
            present = set(self.index.files)
            self._lengths = {file: length for file, length in self._lengths.items() if file in present}

    def reference(self) -> tuple[str, Schema] | None:
        """Path and schema of the file that all others must match; None if no file can be read."""
        if self._reference is None:
            for file, header in itertools.islice(self._readable(), REFERENCE_CANDIDATES):
                fits = self._fits(header)
                if fits or self._reference is None:
                    self._reference = file.path, _schema(header)
                if fits:
                    break
        return self._reference

    def reference_shapes(self) -> dict[str, tuple[int, ...]] | None:
        """Row shapes of the reference file's arrays, by name."""
        reference = self.reference()
        if reference is None:
            return None
        return {name: shape for name, (shape, _) in read_header(reference[0]).schema.items()}

    def set_expected_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Sets the row shapes of the arrays that the environment writes, by name; files may hold more arrays."""
        self._expected_shapes = dict(shapes)
        self._reference = None
        self._headers.clear()

    def set_reference(self, reference: tuple[str, Schema] | None) -> None:
        """Takes over the reference file of another process."""
        self._reference = reference

    def _readable(self) -> Iterator[tuple[TrajFile, TrajectoryHeader]]:
        """Files with their headers, the newest of `fifo` first."""
        newest_first = sorted(self.index.fifo, key=lambda file: file.unix_time, reverse=True)
        for file in newest_first + self.index.protected:
            with contextlib.suppress(CorruptTrajectoryError, OSError):  # handled when the file is drawn
                yield file, read_header(file.path)

    def _fits(self, header: TrajectoryHeader) -> bool:
        shapes = {name: shape for name, (shape, _) in header.schema.items()}
        return all(shapes.get(name) == shape for name, shape in self._expected_shapes.items())

    def _choose(self, rng: np.random.Generator) -> TrajFile | None:
        while self._weighed is not self.index.files:  # weighing may remove unreadable files
            self._weighed = files = self.index.files
            self._cumulative = _cumulative(self._weights(files), len(files)) if files else None
        files = self._weighed
        if not files:
            return None
        if self._cumulative is None:
            return files[int(rng.random() * len(files))]
        drawn = rng.random() * self._cumulative[-1]
        return files[int(np.searchsorted(self._cumulative, drawn, side="right"))]

    def _header(self, file: TrajFile) -> TrajectoryHeader:
        header = self._headers.get(file)
        if header is None:
            header = read_header(file.path)
            if header.length < 1:
                raise CorruptTrajectoryError(f"{file.path} holds no transition")
            schema = _schema(header)
            path, expected = self.reference() or (file.path, schema)
            if schema != expected:
                raise SchemaMismatchError(
                    f"{file.path} differs from {path}: {_differences(schema, expected)}"
                )
            self._headers[file] = header
            if len(self._headers) > KEPT_HEADERS:
                del self._headers[next(iter(self._headers))]
        return header


def _cumulative(weights: ArrayLike | None, count: int) -> NDArray[np.float64] | None:
    if weights is None:
        return None
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


def _schema(header: TrajectoryHeader) -> Schema:
    """Dtype and row shape of every array, such as "float32(2,)", by name."""
    return {name: f"{dtype}{shape}" for name, (shape, dtype) in header.schema.items()}


def _differences(schema: Schema, expected: Schema) -> str:
    return "; ".join(
        f"{name} is {schema.get(name, 'missing')} instead of {expected.get(name, 'missing')}"
        for name in sorted({*schema, *expected})
        if schema.get(name) != expected.get(name)
    )
