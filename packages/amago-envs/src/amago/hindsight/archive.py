"""Uncompressed .npz archives in memory, put together from the arrays' own bytes.

Readers find what `np.savez` writes. That takes several times as long for the small arrays of a short episode: it
goes through zipfile, which is written in Python, and meanwhile a rollout waits.
"""

import struct
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from amago.hindsight.timestep import Array

# Of a member's own header and of its entry in the directory: signature, (who made it,) version, flags, method,
# time, date, checksum, two sizes, lengths of name and extra field (and of comment, disk, attributes, place).
_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_VERSION, _UTF8, _STORED = 20, 0x800, 0
_DATE = (1 << 5) | 1  # the first of January 1980, the earliest there is: equal arrays give equal files
_NPY_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT = 64
# Beyond, archives need the 64-bit form, for which np.savez is quick enough.
MAX_BYTES = 2**31


def stored_archive(arrays: Mapping[str, Array]) -> bytes:
    """The bytes of an uncompressed .npz.

    Args:
        arrays: C-contiguous, of plain numbers, less than `MAX_BYTES` together.
    """
    parts: list[bytes | memoryview] = []
    directory: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        member = _member(name, array.dtype, array.shape)
        data = array.reshape(-1).view(np.uint8).data
        size = len(member.npy_header) + array.nbytes
        checksum = zlib.crc32(data, member.checksum)
        common = (_VERSION, _UTF8, _STORED, 0, _DATE, checksum, size, size, len(member.file_name), 0)
        parts += (_LOCAL.pack(b"PK\x03\x04", *common), member.file_name, member.npy_header, data)
        directory += (
            _CENTRAL.pack(b"PK\x01\x02", _VERSION, *common, 0, 0, 0, 0, offset),
            member.file_name,
        )
        offset += _LOCAL.size + len(member.file_name) + size
    entries = b"".join(directory)
    count = len(arrays)
    end = _END.pack(b"PK\x05\x06", 0, 0, count, count, len(entries), offset, 0)
    return b"".join((*parts, entries, end))


class _Member(NamedTuple):
    """What depends on nothing but an array's name, dtype and shape."""

    file_name: bytes
    npy_header: bytes
    checksum: int  # of npy_header


@lru_cache(maxsize=4096)
def _member(name: str, dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> _Member:
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    used = len(_NPY_MAGIC) + 2 + len(text) + 1
    padded = text.encode("latin1") + b" " * (-used % _ALIGNMENT) + b"\n"
    header = _NPY_MAGIC + struct.pack("<H", len(padded)) + padded
    return _Member(f"{name}.npy".encode(), header, zlib.crc32(header))
