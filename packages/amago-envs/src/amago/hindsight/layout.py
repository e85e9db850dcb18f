"""The layout of a trajectory file of either format, from its headers: what it holds, how long it is, and where.

Reading the headers costs several reads of the data itself, so whoever draws from a file often keeps its layout.
"""

import contextlib
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from amago.hindsight.memory_limit import (
    OutOfProportionError,
    TrajectoryTooLargeError,
    check_whole,
    check_window,
)
from amago.hindsight.npz import stored_arrays
from amago.hindsight.stored_array import Source, StoredArray, open_regular
from amago.hindsight.timestep import Array
from amago.hindsight.trajectory import FIELD_DTYPES, FrozenTraj

TRAJ_VERSION = "1"
SUFFIXES = (".npz", ".traj")
TRANSITION_ARRAYS = frozenset({"rews", "dones", "actions"})
_MOST_HEADER_BYTES = 1 << 22
_TRAJ_DTYPES = {
    "BOOL": "?",
    **{f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}


class CorruptTrajectoryError(ValueError):
    """The file is torn, damaged, or no trajectory."""


class PickledTrajectoryError(CorruptTrajectoryError):
    """The file is a pickle, which could run code when loaded and is therefore never read."""


class DisproportionateTrajectoryError(CorruptTrajectoryError):
    """A window of the file would take far more memory than its compressed data usually needs."""


class FileIdentity(NamedTuple):
    """Tells a file from another that later takes its name."""

    inode: int
    size: int
    mtime_ns: int


class TrajectoryLayout:
    """What the headers of a trajectory file say.

    Attributes:
        identity: of the file that was looked at.
        length: T, the transitions it holds.
        arrays: its arrays; observations by name first, then rl2s, time_idxs, rews, dones, actions.
        is_direct: whether rows can be read from their place straight into arrays of the dtypes of `FrozenTraj`.
        notes: what others work out from it and keep; shared with all siblings.
    """

    __slots__ = ("arrays", "identity", "is_direct", "length", "notes")

    def __init__(self, identity: FileIdentity, arrays: list[StoredArray]) -> None:
        for array in arrays:
            array.check(identity.size)
        _check_together(arrays, identity.size)
        self.identity = identity
        self.notes: dict[str, object] = {}
        # Shapes are judged by the class that holds trajectories, on arrays that take no memory.
        by_name = {a.name: np.broadcast_to(np.zeros((), _held_as(a)), a.shape) for a in arrays}
        self.length = len(FrozenTraj.from_dict(by_name))
        self.arrays = tuple(sorted(arrays, key=lambda array: (array.name in FIELD_DTYPES, array.name)))
        self.is_direct = all(
            a.is_sliceable and a.dtype.isnative and a.dtype == FIELD_DTYPES.get(a.name, a.dtype)
            for a in arrays
        )

    def sibling(self, identity: FileIdentity, checksums: Mapping[str, int]) -> "TrajectoryLayout":
        """The layout of a file of the same size that differs in content alone, by its arrays' checksums."""
        other = object.__new__(TrajectoryLayout)
        other.identity, other.length, other.is_direct = identity, self.length, self.is_direct
        other.notes = self.notes
        other.arrays = tuple(array._replace(checksum=checksums[array.name]) for array in self.arrays)
        return other

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays in memory."""
        return sum(array.nbytes for array in self.arrays)

    def read(self, file: Source, start: int, stop: int) -> FrozenTraj:
        """Transitions `start` to `stop`, and the timesteps `start` to `stop + 1` around them.

        Raises:
            IndexError: if the file does not hold them.
            ValueError: if the data is cut off or damaged, or shrank as if made to fill the memory.
        """
        if not 0 <= start <= stop <= self.length:
            raise IndexError(f"[{start}, {stop}) is no slice of a trajectory of {self.length} transitions")
        check_window(*self._memory_of(start, stop))
        return self._rows(file, start, stop)

    def read_whole(self, file: Source) -> FrozenTraj:
        """All of the trajectory, which may take more memory than windows, of which many are read together.

        Raises:
            ValueError: if the data is cut off or damaged.
            TrajectoryTooLargeError: if it takes too much memory.
        """
        check_whole(*self._memory_of(0, self.length))
        return self._rows(file, 0, self.length)

    def verify(self, file: Source) -> None:
        """Raises ValueError if any of the data is cut off or damaged; takes a piece of it at once."""
        for array in self.arrays:
            array.verify(file)

    def _memory_of(self, start: int, stop: int) -> tuple[int, int]:
        """Bytes that transitions of the compressed arrays take in memory, and all of those arrays in the file."""
        compressed = [array for array in self.arrays if array.compressed_bytes is not None]
        rows = [stop - start + (array.name not in TRANSITION_ARRAYS) for array in compressed]
        needed = sum(map(_memory_of, compressed, rows))
        return needed, sum(array.stored_bytes for array in compressed)

    def _rows(self, file: Source, start: int, stop: int) -> FrozenTraj:
        rows: dict[str, Array] = {
            array.name: array.read(file, start, stop + (array.name not in TRANSITION_ARRAYS))
            for array in self.arrays
        }
        return FrozenTraj.from_dict(rows)


def _check_together(arrays: list[StoredArray], file_bytes: int) -> None:
    """Raises ValueError if arrays have one name or lie in one place."""
    names = {array.name for array in arrays}
    if len(names) < len(arrays):
        raise ValueError(f"it holds {len(arrays)} arrays under {len(names)} names")
    if sum(array.stored_bytes for array in arrays) > file_bytes:
        raise ValueError("arrays lie over one another")


def held_as(array: StoredArray) -> np.dtype[np.generic]:
    """The dtype that it has once it is read."""
    dtype: np.dtype[np.generic] = _held_as(array).newbyteorder("=")
    return dtype


def _held_as(array: StoredArray) -> np.dtype[np.generic]:
    dtype = np.dtype(FIELD_DTYPES.get(array.name, array.dtype))
    return dtype if np.can_cast(array.dtype, dtype, casting="same_kind") else array.dtype


def _memory_of(array: StoredArray, rows: int) -> int:
    """Bytes that reading rows of it takes, with the copies for another order, byte order or dtype."""
    wanted = array.row_bytes * rows
    whole = array.nbytes if array.fortran_order else 0
    native = 0 if array.dtype.isnative else wanted
    held = held_as(array)
    cast = 0 if held == array.dtype.newbyteorder("=") else wanted // array.dtype.itemsize * held.itemsize
    return whole + wanted + native + cast


@contextlib.contextmanager
def opened_trajectory(path: str | Path) -> Iterator[io.FileIO]:
    """Opens a trajectory file; what goes wrong inside because of its content is a CorruptTrajectoryError.

    Raises:
        CorruptTrajectoryError, TrajectoryTooLargeError, OSError: with the path.
    """
    with corruption_named(path):
        if not str(path).endswith(SUFFIXES):
            raise ValueError("the ending is neither .npz nor .traj")
        with open_regular(path) as file:
            yield file


@contextlib.contextmanager
def corruption_named(path: str | Path) -> Iterator[None]:
    """Turns the errors that the content of a file can cause into a CorruptTrajectoryError with its path."""
    try:
        yield
    except (CorruptTrajectoryError, IndexError):
        raise
    except TrajectoryTooLargeError as error:
        raise TrajectoryTooLargeError(f"{path} {error}") from None
    except OutOfProportionError as error:
        raise DisproportionateTrajectoryError(f"{path} {error}") from None
    except (
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        OverflowError,
        MemoryError,
        RecursionError,
        NotImplementedError,
        struct.error,
        zlib.error,
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
    ) as error:
        raise CorruptTrajectoryError(f"{path} is torn, damaged or no trajectory file: {error}") from error


def identity_of(file: io.FileIO) -> FileIdentity:
    """The identity of an open file."""
    status = os.fstat(file.fileno())
    return FileIdentity(status.st_ino, status.st_size, status.st_mtime_ns)


def read_layout(file: Source, path: str | Path, identity: FileIdentity | None = None) -> TrajectoryLayout:
    """Reads the headers of an open trajectory file.

    Args:
        file: the file, or its content.
        path: where it is.
        identity: of the file, needed with its content.

    Raises:
        CorruptTrajectoryError: if it is torn, damaged or no trajectory.
        PickledTrajectoryError: if it is a pickle.
    """
    with corruption_named(path):
        if identity is None:
            assert isinstance(file, io.FileIO)
            identity = identity_of(file)
        if str(path).endswith(".npz"):
            return TrajectoryLayout(identity, stored_arrays(file, identity.size))
        return TrajectoryLayout(identity, _arrays_of_traj(file, identity.size, path))


def _arrays_of_traj(file: Source, file_bytes: int, path: str | Path) -> list[StoredArray]:
    file.seek(0)
    head = file.read(4096)
    # A pickle begins with its protocol number; a safetensors header, whose length could look like one, with "{".
    if head[:1] == b"\x80" and head[8:9] != b"{":
        raise PickledTrajectoryError(
            f"{path} is a pickle, which can run code when it is read, so it is refused. Convert it in the program "
            "that wrote it: load it there, save it again with save_as='npz', and bring the .npz file"
        )
    header_bytes = int.from_bytes(head[:8], "little")
    if len(head) < 8 or header_bytes > min(file_bytes - 8, _MOST_HEADER_BYTES):
        raise ValueError("its header is cut off")
    header = head[8 : 8 + header_bytes]
    if len(header) < header_bytes:
        file.seek(8)
        header = file.read(header_bytes)
    entries = json.loads(header, object_pairs_hook=_without_repetition)
    metadata = entries.pop("__metadata__", {}) if isinstance(entries, dict) else None
    if not isinstance(metadata, dict):
        raise ValueError("its header is no table of arrays")
    version = metadata.get("version", TRAJ_VERSION)
    if version != TRAJ_VERSION:
        raise ValueError(
            f"it has version {version} of the format, and this release reads version {TRAJ_VERSION}"
        )
    arrays = []
    for name, entry in entries.items():
        shape, (first, last) = entry["shape"], entry["data_offsets"]
        if not isinstance(shape, list) or any(type(number) is not int for number in (*shape, first, last)):
            raise ValueError(f"array {name} has the shape {shape}")
        array = StoredArray(
            name,
            tuple(shape),
            np.dtype(_TRAJ_DTYPES[entry["dtype"]]),
            8 + header_bytes + first,
        )
        if first < 0 or last - first != array.nbytes:
            raise ValueError(f"array {name} does not fit its place")
        arrays.append(array)
    return arrays


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("its header has a name twice")
    return table
