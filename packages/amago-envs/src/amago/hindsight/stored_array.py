"""An array inside a trajectory file, and how rows of it are read from their place without the rest of the file."""

import io
import math
import os
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amago.hindsight.timestep import Array

Source = io.FileIO | io.BytesIO
"""An open file, or the content of a small one."""

_MOST_DEFLATE_SHRINKS = 1032
"""Deflate cannot do better, so a member that claims to hold more is no array but an attack on memory."""

_CHUNK = 1 << 18
"""Bytes that are inflated at once."""

_READING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class StoredArray(NamedTuple):
    """Where an array lies in a file and what it is.

    `offset` is that of its first row, or of the compressed stream that begins with `header_bytes` of header.
    `checksum` is the CRC-32 of header and rows together, and `header_checksum` that of the header alone.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int
    fortran_order: bool = False
    compressed_bytes: int | None = None
    header_bytes: int = 0
    header_checksum: int = 0
    checksum: int | None = None

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def stored_bytes(self) -> int:
        """Bytes that it takes of the file, header left out."""
        return self.nbytes if self.compressed_bytes is None else self.compressed_bytes

    @property
    def is_sliceable(self) -> bool:
        """Whether rows can be read without those before them."""
        return self.compressed_bytes is None and not self.fortran_order

    def check(self, file_bytes: int) -> None:
        """Raises ValueError if the array holds no numbers or claims more bytes than the file can give."""
        if self.dtype.kind not in "biuf" or self.dtype.itemsize > 8:
            raise ValueError(f"array {self.name} has dtype {self.dtype}; trajectories hold plain numbers")
        if not self.shape or min(self.shape) < 0:
            raise ValueError(f"array {self.name} has the shape {self.shape}, without rows")
        stored = self.stored_bytes
        if self.offset < 0 or stored < 0 or self.offset + stored > file_bytes:
            raise ValueError(f"array {self.name} is cut off")
        if self.compressed_bytes is not None and self.nbytes > _MOST_DEFLATE_SHRINKS * (stored + 64):
            raise ValueError(f"array {self.name} claims {self.nbytes} bytes out of {stored} compressed ones")

    def read(self, file: Source, start: int, stop: int) -> Array:
        """Rows `start` to `stop`, as a writable array of the machine's own byte order.

        Raises:
            ValueError: if they are cut off or damaged.
        """
        if self.fortran_order:
            whole = np.empty(self.shape[::-1], dtype=self.dtype)
            self._fill(file, whole, 0)
            return self._native(np.ascontiguousarray(whole.T[start:stop]))
        rows = np.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        self._fill(file, rows, start)
        return self._native(rows)

    def read_into(self, file: Source, rows: Array, start: int) -> None:
        """Fills the contiguous array `rows` with those from `start` on; the array is no compressed one."""
        count, nbytes = len(rows), rows.nbytes
        file.seek(self.offset + start * (nbytes // count if count else 0))
        if nbytes and (done := file.readinto(rows.data)) != nbytes:
            self._read_rest(file, rows, done)
        if count == self.shape[0] and self.checksum is not None:
            self._compare(zlib.crc32(rows.data, self.header_checksum))

    def verify(self, file: Source) -> None:
        """Reads all of it without keeping it; raises ValueError if it is cut off or damaged."""
        if self.compressed_bytes is None:
            pieces, checksum = self._stored(file), self.header_checksum
        else:
            pieces, checksum = self._inflated(file, self.header_bytes + self.nbytes), 0
        for content in pieces:
            checksum = zlib.crc32(content, checksum)
        self._compare(checksum)

    def _fill(self, file: Source, rows: Array, start: int) -> None:
        if self.compressed_bytes is None:
            self.read_into(file, rows, start)
        elif rows.nbytes:
            self._inflate_into(file, rows, self.header_bytes + start * self.row_bytes)

    def _read_rest(self, file: Source, rows: Array, done: int) -> None:
        """Goes on after a read that ended early, as one of more than 2 GiB always does."""
        rest = rows.reshape(-1).view(np.uint8)[done:]
        while len(rest):
            count = file.readinto(rest.data)
            if not count:
                raise ValueError(f"array {self.name} is cut off")
            rest = rest[count:]

    def _inflate_into(self, file: Source, rows: Array, first: int) -> None:
        """Fills `rows` with the inflated bytes from `first` on; those before pass by without being kept."""
        target = rows.reshape(-1).view(np.uint8).data
        last = first + len(target)
        is_checked = last == self.header_bytes + self.nbytes  # the checksum is that of everything
        place = checksum = 0
        for content in self._inflated(file, last):
            if is_checked:
                checksum = zlib.crc32(content, checksum)
            end = place + len(content)
            if end > first:
                begin = max(place, first)
                target[begin - first : end - first] = content[begin - place :]
            place = end
        if is_checked:
            self._compare(checksum)

    def _inflated(self, file: Source, last: int) -> Iterator[bytes]:
        """The inflated bytes up to `last`, header included, in pieces."""
        assert self.compressed_bytes is not None
        file.seek(self.offset)
        left, place, inflater, stream = self.compressed_bytes, 0, zlib.decompressobj(-15), b""
        while place < last:
            if not stream:
                stream = file.read(min(left, _CHUNK))
                left -= len(stream)
            content = inflater.decompress(stream, min(last - place, _CHUNK))
            if not content and (inflater.eof or not stream):
                raise ValueError(f"array {self.name} is cut off")
            stream = inflater.unconsumed_tail
            place += len(content)
            yield content

    def _stored(self, file: Source) -> Iterator[bytes]:
        """The bytes of an array that is not compressed, in pieces."""
        file.seek(self.offset)
        left = self.nbytes
        while left:
            content = file.read(min(left, _CHUNK))
            if not content:
                raise ValueError(f"array {self.name} is cut off")
            left -= len(content)
            yield content

    def _compare(self, checksum: int) -> None:
        if self.checksum is not None and checksum != self.checksum:
            raise ValueError(f"array {self.name} is damaged: its checksum differs")

    def _native(self, rows: Array) -> Array:
        return rows if self.dtype.isnative else rows.astype(self.dtype.newbyteorder("="))


def open_regular(path: str | Path) -> io.FileIO:
    """Opens a file for reading, but no folder, and no pipe, which could block for ever.

    Raises:
        ValueError: if it is something else than a file.
        OSError: if it cannot be opened.
    """
    file = open_unchecked(path)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError("it is no regular file")
    return file


def open_unchecked(path: str | Path) -> io.FileIO:
    """Opens what may be a file for reading, without waiting for the other end if it is a pipe."""
    descriptor = os.open(path, _READING)
    try:
        return io.FileIO(descriptor)
    except OSError:  # a folder
        os.close(descriptor)
        raise
