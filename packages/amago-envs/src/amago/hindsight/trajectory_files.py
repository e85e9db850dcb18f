"""Saves and loads trajectory files, whole or one slice of timesteps.

- `.npz`, uncompressed ("npz") or compressed ("npz-compressed"): numpy's archive, readable with `np.load`.
- `.traj` ("traj"): safetensors, with the format version, the length, the environment's name and a checksum of each
  array in its metadata.

Both hold the arrays of `FrozenTraj.to_dict`. A slice of an uncompressed file is read without the rest of the file.
Arrays that are read whole are compared with their CRC-32; a slice is not, which would cost reading the rest.
Files are written atomically, and pickles are never read.

T = transitions.
"""

import contextlib
import io
import json
import math
import mmap
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save as to_safetensors

from amago.hindsight.atomic_writes import atomic_file
from amago.hindsight.filenames import SUFFIXES, save_suffix, strip_suffix
from amago.hindsight.timestep import Array
from amago.hindsight.trajectory import FIELD_DTYPES, FrozenTraj

TRAJ_VERSION = "1"
TRANSITION_ARRAYS = frozenset({"rews", "dones", "actions"})
# A larger compressed array is refused, because a small file could exhaust the memory.
MAX_DECOMPRESSED_BYTES = 1 << 30
# Smaller files are read at once. Larger windows are mapped, if their arrays may be read-only.
READ_ONCE_BYTES = 1 << 17
MAPPED_BYTES = 1 << 20
_LOCAL_HEADER = struct.Struct("<26x2H")  # of a zip member: ..., lengths of its name and of its extra field
_TRAJ_DTYPES = {
    "BOOL": "?",
    **{f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)},
    **{f"F{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}


class CorruptTrajectoryError(ValueError):
    """The file is torn, damaged, or not a trajectory."""


class PickledTrajectoryError(CorruptTrajectoryError):
    """The file is a pickle, which could run code when loaded and is therefore never read."""


@contextlib.contextmanager
def _naming_corrupt_file(path: str) -> Iterator[None]:
    """Raises errors in the content of a file as CorruptTrajectoryError; parsers of damaged data raise any type."""
    try:
        yield
    except (OSError, CorruptTrajectoryError):
        raise
    except Exception as error:
        raise CorruptTrajectoryError(f"{path} is torn, damaged or not a trajectory file: {error}") from error


class ArrayHeader(NamedTuple):
    """Shape, dtype and position of an array in a trajectory file.

    Attributes:
        shape: shape of the whole array.
        dtype: dtype in the file.
        offset: offset of the first row in the file or in the decompressed .npy member.
        is_compressed: whether the rows have to be decompressed.
        crc: CRC-32 of the .npy header, if there is one, and the rows; None in a .traj of an earlier release.
        header_crc: CRC-32 of the .npy header alone, 0 in a .traj.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    is_compressed: bool = False
    crc: int | None = None
    header_crc: int = 0


class TrajectoryHeader:
    """The arrays of a trajectory file, without their data.

    Attributes:
        arrays: `ArrayHeader` by name, as in `FrozenTraj.to_dict`.
        length: T.
        schema: (row shape, dtype after reading) by name. Files with equal schemas fit into one batch.
        nbytes: size of all arrays in memory.
        is_sliceable: whether rows of all arrays can be read without the others.
    """

    __slots__ = ("arrays", "is_sliceable", "length", "nbytes", "schema")

    def __init__(self, arrays: Mapping[str, ArrayHeader]) -> None:
        self.arrays = dict(arrays)
        self.is_sliceable = not any(array.is_compressed for array in self.arrays.values())
        self.schema: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        self.nbytes = 0
        for name, array in self.arrays.items():
            if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
                raise ValueError(f"array {name} has dtype {array.dtype}; trajectories hold plain numbers")
            if not array.shape or min(array.shape) < 0:
                raise ValueError(f"array {name} has the shape {array.shape}, which has no time axis")
            dtype = _dtype_after_reading(name, array.dtype)
            self.schema[name] = (array.shape[1:], dtype)
            self.nbytes += math.prod(array.shape) * dtype.itemsize
        # FrozenTraj checks names and shapes; broadcast arrays take no memory.
        empty = {n: np.broadcast_to(np.zeros((), self.schema[n][1]), a.shape) for n, a in self.arrays.items()}
        self.length = len(FrozenTraj.from_dict(empty))


def _dtype_after_reading(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    wanted = np.dtype(FIELD_DTYPES.get(name, dtype.newbyteorder("=")))
    return wanted if np.can_cast(dtype, wanted, casting="same_kind") else dtype


def write_trajectory(frozen: FrozenTraj, folder: str, stem: str, save_as: str, env_name: str) -> str:
    """Writes a trajectory atomically to `folder`, named `stem` and the suffix of `save_as`.

    Args:
        frozen: the trajectory.
        folder: an existing folder.
        stem: file name without suffix, see `trajectory_filename`.
        save_as: "npz", "npz-compressed" or "traj".
        env_name: name of the environment, kept in the metadata of a .traj.

    Returns:
        The path of the file.

    Raises:
        ValueError: for an unknown format, or arrays of Python objects.
        OSError: if the file cannot be written (no folder, no space); nothing is left behind.
    """
    path = os.path.join(folder, stem + save_suffix(save_as))
    arrays = {key: np.ascontiguousarray(array) for key, array in frozen.to_dict().items()}
    for key, array in arrays.items():
        if array.dtype.hasobject:
            raise ValueError(f"{key} has dtype {array.dtype}; trajectories hold numbers, not Python objects")
    if save_as == "traj":
        metadata = {
            "format": "amago-trajectory",
            "version": TRAJ_VERSION,
            "length": str(len(frozen)),
            "env_name": env_name,
            "crc32": json.dumps({name: zlib.crc32(array.data) for name, array in arrays.items()}),
        }
        content = to_safetensors(arrays, metadata=metadata)
    else:
        archive = io.BytesIO()
        save_archive = np.savez if save_as == "npz" else np.savez_compressed
        save_archive(archive, **arrays)  # type: ignore[arg-type]
        content = archive.getvalue()  # a view, kept alive by a traceback, could not be collected
    try:
        # No fsync: a killed process loses nothing, and a flush per episode would slow down collection.
        with atomic_file(path, fsync=False) as file:
            file.write(content)
    except OSError as error:
        raise OSError(error.errno, f"cannot write trajectories to {folder}: {error.strerror}") from error
    return path


def save_trajectory(frozen: FrozenTraj, path: Path, save_as: str, env_name: str) -> Path:
    """`write_trajectory` to `path`, whose suffix is replaced by that of `save_as`; returns the path."""
    return Path(write_trajectory(frozen, str(path.parent), strip_suffix(path.name), save_as, env_name))


def load_trajectory(path: Path) -> FrozenTraj:
    """Reads a whole trajectory file into writable arrays.

    Raises:
        CorruptTrajectoryError: if the file is torn, damaged or not a trajectory.
        PickledTrajectoryError: if it is a pickle.
        OSError: if it cannot be opened.
    """
    header = read_header(path)
    return FrozenTraj.from_dict(read_rows(path, header, 0, header.length))


def load_slice(path: Path, start: int, stop: int) -> FrozenTraj:
    """Reads transitions [start, stop) and the timesteps [start, stop + 1) around them.

    Only the slice is read from a .traj and from an uncompressed .npz.

    Raises:
        IndexError: unless 0 <= start < stop <= T.
        CorruptTrajectoryError, PickledTrajectoryError, OSError: as `load_trajectory`.
    """
    header = read_header(path)
    if not 0 <= start < stop <= header.length:
        raise IndexError(f"[{start}, {stop}) is not a slice of a trajectory of {header.length} transitions")
    return FrozenTraj.from_dict(read_rows(path, header, start, stop))


def trajectory_length(path: Path) -> int:
    """T, read from the file's header; raises as `load_trajectory`."""
    return read_header(path).length


def read_header(path: str | Path) -> TrajectoryHeader:
    """Reads names, shapes and dtypes of a trajectory file; raises as `load_trajectory`."""
    path = os.fspath(path)
    with _naming_corrupt_file(path):
        if not path.endswith(SUFFIXES):
            raise ValueError(f"its suffix is not one of {', '.join(SUFFIXES)}")
        if not os.path.isfile(path) and os.path.lexists(path):
            raise ValueError("it is not a regular file")
        return TrajectoryHeader(_npz_arrays(path) if path.endswith(".npz") else _traj_arrays(path))


def read_rows(
    path: str | Path, header: TrajectoryHeader, start: int, stop: int, *, writable: bool = True
) -> dict[str, Array]:
    """Rows of all arrays: transitions [start, stop), timesteps [start, stop + 1).

    Args:
        path: the file.
        header: `read_header` of this file.
        start: first transition.
        stop: the transition after the last one, at most T.
        writable: if False, arrays may be read-only views of the mapped file, which saves a copy.

    Raises:
        CorruptTrajectoryError: if the data is cut off or damaged.
        OSError: if the file cannot be opened.
    """
    path = os.fspath(path)
    rows: dict[str, Array] = {}
    with _naming_corrupt_file(path), contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "rb", buffering=0))
        window_bytes = header.nbytes * (stop - start) // max(header.length, 1)
        content = _content(file, map_file=not writable and window_bytes > MAPPED_BYTES)
        reader = stack.enter_context(
            io.BufferedReader(file)
        )  # reads again where one system call returns less
        archive = None if header.is_sliceable else stack.enter_context(zipfile.ZipFile(path))
        for name, array in header.arrays.items():
            last = stop if name in TRANSITION_ARRAYS else stop + 1
            shape = (last - start, *array.shape[1:])
            row_size = math.prod(array.shape[1:])
            offset = array.offset + start * row_size * array.dtype.itemsize
            if content is not None and not array.is_compressed:
                block: Array = np.ndarray(shape, array.dtype, content, offset)
            else:
                block = np.empty(shape, array.dtype)
                source: IO[bytes] = reader
                if array.is_compressed:
                    assert archive is not None
                    source = stack.enter_context(archive.open(f"{name}.npy"))
                source.seek(offset)
                if source.readinto(block.data) != block.nbytes:  # type: ignore[attr-defined]
                    raise ValueError(f"array {name} is cut off")
            is_whole = len(block) == array.shape[0]
            if is_whole and array.crc is not None and zlib.crc32(block.data, array.header_crc) != array.crc:
                raise ValueError(f"array {name} is damaged: its checksum differs")
            rows[name] = block.astype(header.schema[name][1], copy=False)
    return rows


def _content(file: io.FileIO, *, map_file: bool) -> bytearray | mmap.mmap | None:
    """The content of a file, if using it is quicker than reading the rows of each array."""
    if map_file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    file_bytes = os.fstat(file.fileno()).st_size
    if file_bytes > READ_ONCE_BYTES:
        return None
    content = bytearray(file_bytes)
    file.readinto(content)
    return content


def _npz_arrays(path: str) -> dict[str, ArrayHeader]:
    arrays: dict[str, ArrayHeader] = {}
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        file_bytes = os.fstat(file.fileno()).st_size
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in arrays:
                raise ValueError(f"array {name} occurs twice")
            if not 0 <= member.header_offset < file_bytes:
                raise ValueError(f"array {name} begins outside of the file")
            is_stored = member.compress_type == zipfile.ZIP_STORED
            if is_stored:
                file.seek(member.header_offset)
                lengths = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
                start = member.header_offset + _LOCAL_HEADER.size + sum(lengths)
                if file.read(lengths[0]) != member.orig_filename.encode():
                    raise ValueError(f"array {name} has another name where it begins")
                file.seek(start)
                npy = _read_npy_header(file)
            else:
                with archive.open(member) as content:
                    npy = _read_npy_header(content)
            if npy.fortran_order:
                raise ValueError(f"array {name} is in Fortran order; save it in C order")
            nbytes = math.prod(npy.shape) * npy.dtype.itemsize
            if npy.size + nbytes != member.file_size:
                raise ValueError(
                    f"array {name} has {member.file_size - npy.size} bytes, its shape needs {nbytes}"
                )
            if is_stored and start + member.file_size > file_bytes:
                raise ValueError(f"array {name} is cut off")
            if not is_stored and nbytes > MAX_DECOMPRESSED_BYTES:
                raise ValueError(
                    f"array {name} is compressed and has {nbytes} bytes, more than {MAX_DECOMPRESSED_BYTES}; "
                    "save it uncompressed"
                )
            arrays[name] = ArrayHeader(
                npy.shape,
                npy.dtype,
                npy.size + (start if is_stored else 0),
                is_compressed=not is_stored,
                crc=member.CRC,
                header_crc=npy.crc,
            )
    return arrays


class _NpyHeader(NamedTuple):
    size: int
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    crc: int


def _read_npy_header(file: IO[bytes]) -> _NpyHeader:
    start = file.read(10)  # magic string, version, length of the rest (little-endian uint16)
    if start[:8] != b"\x93NUMPY\x01\x00":
        raise ValueError(f"an array begins with {start[:8]!r} instead of an .npy header of version 1.0")
    return _parse_npy_header(start + file.read(int.from_bytes(start[8:], "little")))


@lru_cache(maxsize=1024)
def _parse_npy_header(content: bytes) -> _NpyHeader:
    stream = io.BytesIO(content)
    np.lib.format.read_magic(stream)
    shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(stream)
    return _NpyHeader(len(content), shape, fortran_order, dtype, zlib.crc32(content))


def _traj_arrays(path: str) -> dict[str, ArrayHeader]:
    with open(path, "rb") as raw:
        head = raw.read(9)
        # A pickle begins with its protocol number. The length of a safetensors header could look like one, but
        # is followed by "{".
        if head[:1] == b"\x80" and head[8:] != b"{":
            raise PickledTrajectoryError(
                f"{path} is a pickle, which can run code when it is read, so it is refused. Load it in the "
                "program that wrote it, save it again with save_as='npz', and use the .npz file"
            )
        with safe_open(path, framework="numpy") as file:  # checks the header against the file
            metadata = file.metadata() or {}
        version = metadata.get("version", TRAJ_VERSION)
        if version != TRAJ_VERSION:
            raise ValueError(
                f"it has format version {version}, and this release reads version {TRAJ_VERSION}"
            )
        header_bytes = int.from_bytes(head[:8], "little")
        raw.seek(8)
        entries = json.loads(raw.read(header_bytes))
    entries.pop("__metadata__", None)
    checksums = json.loads(metadata.get("crc32", "{}"))  # earlier releases wrote none
    if checksums and checksums.keys() != entries.keys():
        raise ValueError(f"it has the arrays {sorted(entries)}, and checksums of {sorted(checksums)}")
    return {
        name: ArrayHeader(
            tuple(entry["shape"]),
            np.dtype(_TRAJ_DTYPES[entry["dtype"]]),
            8 + header_bytes + entry["data_offsets"][0],
            crc=checksums.get(name),
        )
        for name, entry in entries.items()
    }
