"""An array inside a trajectory file, and how rows of it are read from their place without the rest of the file."""

import io
import math
import os
import stat
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from amago.hindsight.timestep import Array

_MOST_DEFLATE_SHRINKS = 1032
"""Deflate cannot do better, so a member that claims to hold more is no array but an attack on memory."""

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
    def is_sliceable(self) -> bool:
        """Whether rows can be read without those before them."""
        return self.compressed_bytes is None and not self.fortran_order

    def check(self, file_bytes: int) -> None:
        """Raises ValueError if the array holds no numbers or claims more bytes than the file can give."""
        if self.dtype.kind not in "biuf" or self.dtype.itemsize > 8:
            raise ValueError(f"array {self.name} has dtype {self.dtype}; trajectories hold plain numbers")
        if not self.shape or min(self.shape) < 0:
            raise ValueError(f"array {self.name} has the shape {self.shape}, without rows")
        stored = self.nbytes if self.compressed_bytes is None else self.compressed_bytes
        if self.offset < 0 or stored < 0 or self.offset + stored > file_bytes:
            raise ValueError(f"array {self.name} is cut off")
        if self.compressed_bytes is not None and self.nbytes > _MOST_DEFLATE_SHRINKS * (stored + 64):
            raise ValueError(f"array {self.name} claims {self.nbytes} bytes out of {stored} compressed ones")

    def read(self, file: io.FileIO, start: int, stop: int) -> Array:
        """Rows `start` to `stop`, as a writable array of the machine's own byte order.

        Raises:
            ValueError: if they are cut off or damaged.
        """
        if self.compressed_bytes is not None:
            return self._native(self._inflated(file, stop)[start:].copy())
        if self.fortran_order:
            rows = np.empty(self.shape[::-1], dtype=self.dtype)
            self.read_into(file, rows, 0)
            return self._native(np.ascontiguousarray(rows.T[start:stop]))
        rows = np.empty((stop - start, *self.shape[1:]), dtype=self.dtype)
        self.read_into(file, rows, start)
        return self._native(rows)

    def read_into(self, file: io.FileIO, rows: Array, start: int) -> None:
        """Fills the contiguous array `rows` with those from `start` on; see `read`."""
        count, nbytes = len(rows), rows.nbytes
        file.seek(self.offset + start * (nbytes // count if count else 0))
        if nbytes and file.readinto(rows.data) != nbytes:
            raise ValueError(f"array {self.name} is cut off")
        if count == self.shape[0] and self.checksum is not None:
            self._compare(zlib.crc32(rows.data, self.header_checksum))

    def _inflated(self, file: io.FileIO, stop: int) -> Array:
        """The first `stop` rows."""
        assert self.compressed_bytes is not None
        file.seek(self.offset)
        stream = file.read(self.compressed_bytes) or b""
        wanted = self.header_bytes + (self.nbytes if self.fortran_order else stop * self.row_bytes)
        content = zlib.decompressobj(-zlib.MAX_WBITS).decompress(stream, max(wanted, 1))
        if len(content) < wanted:
            raise ValueError(f"array {self.name} is cut off")
        if wanted == self.header_bytes + self.nbytes:
            self._compare(zlib.crc32(content))
        rows = np.frombuffer(content, dtype=self.dtype, offset=self.header_bytes)
        if self.fortran_order:
            return rows.reshape(self.shape, order="F")[:stop]
        return rows.reshape(stop, *self.shape[1:])

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
    return io.FileIO(os.open(path, _READING))
