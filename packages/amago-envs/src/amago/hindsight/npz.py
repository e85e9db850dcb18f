"""Finds the arrays in .npz archives, so that they can be read by rows, which numpy itself does not do.

An .npz is a zip archive of .npy files. Its directory, at the end of the file, is read here directly: zipfile
takes ten times as long as reading a window of the data.
"""

import io
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from amago.hindsight.stored_array import Source, StoredArray

_LOCAL_HEADER = struct.Struct("<4s5H3I2H")
_END = struct.Struct("<4s4H2IH")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_TAIL_BYTES = 4096
_HEAD_BYTES = 512
_ENCRYPTED = 1
_MOST_MEMBERS = 4096


class _Member(NamedTuple):
    name: str
    flags: int
    method: int
    checksum: int
    compressed_bytes: int
    offset: int
    place: int


class _Header(NamedTuple):
    shape: tuple[int, ...]
    fortran_order: bool
    dtype: np.dtype[Any]
    checksum: int


def stored_arrays(file: Source, file_bytes: int) -> list[StoredArray]:
    """The arrays of the archive, from its directory and the headers alone.

    Raises:
        ValueError, zipfile.BadZipFile, zlib.error, struct.error: if it is torn or no archive of arrays.
    """
    members = _members(file, file_bytes)
    if len(members) > _MOST_MEMBERS:
        raise ValueError(f"it holds {len(members)} arrays, more than any trajectory")
    if any(not 0 <= member.offset < file_bytes for member in members):
        raise ValueError("an array lies outside of the file")
    return [_stored_array(file, member) for member in members]


def checksum_places(content: bytes) -> dict[str, tuple[int, int]] | None:
    """Where a whole archive has the checksums of its arrays: in its directory, and in the arrays' own headers.

    None for an archive whose directory is of a rare form. The archive is one that `stored_arrays` understands.
    """
    members = _members(io.BytesIO(content), len(content))
    if any(member.place < 0 for member in members):
        return None
    return {m.name.removesuffix(".npy"): (m.place + 16, m.offset + 14) for m in members}


def _members(file: Source, file_bytes: int) -> list[_Member]:
    tail_bytes = min(file_bytes, _TAIL_BYTES)
    file.seek(file_bytes - tail_bytes)
    tail = file.read(tail_bytes)
    found = tail.rfind(b"PK\x05\x06")
    if found >= 0 and found + _END.size <= len(tail):
        _, _, _, _, count, size, offset, _ = _END.unpack_from(tail, found)
        start = found - size
        if start >= 0 and file_bytes - tail_bytes + start == offset:
            members = list(_entries(tail[start:found], count, offset))
            if all(m.compressed_bytes < 2**32 - 1 and m.offset < 2**32 - 1 for m in members):
                return members
    # Many arrays, a comment, more than 4 GiB: rare, and zipfile knows how.
    with zipfile.ZipFile(file) as archive:
        return [
            _Member(i.filename, i.flag_bits, i.compress_type, i.CRC, i.compress_size, i.header_offset, -1)
            for i in archive.infolist()
        ]


def _entries(directory: bytes, count: int, begin: int) -> Iterator[_Member]:
    place = 0
    for _ in range(count):
        entry = _ENTRY.unpack_from(directory, place)
        if entry[0] != b"PK\x01\x02":
            raise ValueError("the archive's directory is damaged")
        flags, method, checksum, compressed_bytes = entry[3], entry[4], entry[7], entry[8]
        name_bytes, extra_bytes, comment_bytes, offset = entry[10], entry[11], entry[12], entry[16]
        entry_place = begin + place
        place += _ENTRY.size
        name = directory[place : place + name_bytes].decode("utf-8", errors="replace")
        place += name_bytes + extra_bytes + comment_bytes
        yield _Member(name, flags, method, checksum, compressed_bytes, offset, entry_place)


def _stored_array(file: Source, member: _Member) -> StoredArray:
    name = member.name.removesuffix(".npy")
    file.seek(member.offset)
    head = file.read(_HEAD_BYTES)
    if len(head) < _LOCAL_HEADER.size or head[:4] != b"PK\x03\x04":
        raise ValueError(f"array {name} has no local header")
    name_bytes, extra_bytes = _LOCAL_HEADER.unpack_from(head)[-2:]
    start = _LOCAL_HEADER.size + name_bytes + extra_bytes
    if member.flags & _ENCRYPTED or member.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"array {name} is encrypted or compressed in another way than numpy does")
    compressed = member.method == zipfile.ZIP_DEFLATED
    content = head[start:]
    if compressed:
        # deflate needs to see at most this much for the few hundred bytes of a header
        file.seek(member.offset + start)
        stream = file.read(min(member.compressed_bytes, 4 * _HEAD_BYTES))
        content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(stream, 4 * _HEAD_BYTES)
    header_bytes = _npy_header_bytes(content)
    if len(content) < header_bytes and not compressed:
        file.seek(member.offset + start)
        content = file.read(header_bytes)
    header = _npy_header(content[:header_bytes])
    return StoredArray(
        name=name,
        shape=header.shape,
        dtype=header.dtype,
        offset=member.offset + start + (0 if compressed else header_bytes),
        fortran_order=header.fortran_order,
        compressed_bytes=member.compressed_bytes if compressed else None,
        header_bytes=header_bytes,
        header_checksum=header.checksum,
        checksum=member.checksum,
    )


def _npy_header_bytes(content: bytes) -> int:
    if content[:8] == b"\x93NUMPY\x01\x00" and len(content) >= 10:
        return 10 + int.from_bytes(content[8:10], "little")
    if content[:8] == b"\x93NUMPY\x02\x00" and len(content) >= 12:
        return min(12 + int.from_bytes(content[8:12], "little"), 1 << 16)
    raise ValueError(f"it begins with {content[:8]!r} instead of an array's header")


@lru_cache(maxsize=1024)
def _npy_header(header: bytes) -> _Header:
    stream = io.BytesIO(header)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    try:
        shape, fortran_order, dtype = read(stream)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"the header of an array cannot be understood: {error}") from error
    one_order = fortran_order and sum(size != 1 for size in shape) > 1
    return _Header(shape, one_order, dtype, zlib.crc32(header))
