"""Uncompressed .npz archives in memory, put together from the arrays' own bytes.

Readers find what `np.savez` writes. That takes several times as long for the small arrays of a short episode: it
goes through zipfile, which is written in Python, and while the writing thread runs Python a rollout waits.
"""

import struct
import zlib
from collections.abc import Mapping

import numpy as np

from amago.hindsight.timestep import Array

# What follows the signature is the same in a member's own header and in its entry of the directory.
_COMMON = struct.Struct("<5H3I2H")
_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_CENTRAL_REST = struct.Struct("<3H2I")
_END_REST = struct.Struct("<4H2IH")
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
        file_name = f"{name}.npy".encode()
        header = _npy_header(array)
        data = array.reshape(-1).view(np.uint8).data
        size = len(header) + array.nbytes
        checksum = zlib.crc32(data, zlib.crc32(header))
        common = _COMMON.pack(_VERSION, _UTF8, _STORED, 0, _DATE, checksum, size, size, len(file_name), 0)
        parts += (_LOCAL, common, file_name, header, data)
        made_by = struct.pack("<H", _VERSION)
        directory += (_CENTRAL, made_by, common, _CENTRAL_REST.pack(0, 0, 0, 0, offset), file_name)
        offset += len(_LOCAL) + len(common) + len(file_name) + size
    entries = b"".join(directory)
    count = len(arrays)
    end = _END_REST.pack(0, 0, count, count, len(entries), offset, 0)
    return b"".join((*parts, entries, _END, end))


def _npy_header(array: Array) -> bytes:
    text = f"{{'descr': {array.dtype.str!r}, 'fortran_order': False, 'shape': {array.shape!r}, }}"
    used = len(_NPY_MAGIC) + 2 + len(text) + 1
    padded = text.encode("latin1") + b" " * (-used % _ALIGNMENT) + b"\n"
    return _NPY_MAGIC + struct.pack("<H", len(padded)) + padded
