"""Reading slices out of uncompressed .npz archives, which numpy itself only reads member by member.

An .npz is a zip archive of .npy files. A stored (not deflated) member lies in the archive byte for byte, so the
rows wanted can be read from their place.
"""

import struct
import zipfile
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO

import numpy as np

from amago.hindsight.timestep import Array

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")


def holds_compressed(path: Path) -> bool:
    """Whether any member is compressed, so that no slice can be read without the rest."""
    with zipfile.ZipFile(path) as archive:
        return any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist())


def stored_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every array in the archive, from the headers alone."""
    shapes: dict[str, tuple[int, ...]] = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            with archive.open(info) as member:
                shapes[_array_name(info)] = _npy_header(member)[0]
    return shapes


def read_rows(
    file: BufferedReader, rows_of: Callable[[str, int], tuple[int, int]]
) -> Iterator[tuple[str, Array]]:
    """Yields (name, rows) of every array in an uncompressed archive.

    Args:
        file: the archive.
        rows_of: gives the range of rows to read of an array, from its name and its number of rows.

    Raises:
        ValueError: if a member is not what its header says.
    """
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    for info in members:
        name = _array_name(info)
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size or header[:4] != b"PK\x03\x04":
            raise ValueError(f"array {name} has no local header")
        name_length, extra_length = _LOCAL_HEADER.unpack(header)[-2:]
        file.seek(name_length + extra_length, 1)
        shape, fortran_order, dtype = _npy_header(file)
        if fortran_order or dtype.hasobject or not shape:
            raise ValueError(f"array {name} (shape {shape}, dtype {dtype}) cannot be read by rows")
        start, stop = rows_of(name, shape[0])
        row_items = int(np.prod(shape[1:], dtype=np.int64))
        file.seek(start * row_items * dtype.itemsize, 1)
        array = np.empty((stop - start, *shape[1:]), dtype=dtype)
        if file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
            raise ValueError(f"array {name} is cut off")
        yield name, array


def _array_name(info: zipfile.ZipInfo) -> str:
    return info.filename[: -len(".npy")] if info.filename.endswith(".npy") else info.filename


def _npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"version {version} of the .npy format")
