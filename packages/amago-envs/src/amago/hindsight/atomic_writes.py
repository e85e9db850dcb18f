"""Atomic file writes: a file appears under its name complete, or not at all."""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

UNFINISHED_SUFFIX = ".part"
# A write takes seconds, so an unfinished file that has not changed for an hour belongs to a dead process.
ABANDONED_SECONDS = 3600.0
_numbers = itertools.count()


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], *, fsync: bool = True) -> Iterator[BinaryIO]:
    """Yields a new binary file that replaces `path` when the block ends.

    The data goes to a hidden sibling first and is then renamed, so readers and a killed process never leave or see
    a partial file. If the block raises, the sibling is removed and `path` stays as it was.

    Args:
        path: the file to create or replace, in an existing folder.
        fsync: flush the file to disk before the rename, so that it also survives a power failure.

    Raises:
        OSError: if the file cannot be written.
    """
    path = os.fspath(path)
    folder, name = os.path.split(path)
    unique = f"{os.getpid()}-{threading.get_ident()}-{next(_numbers)}"
    # The leading dot and the suffix keep the unfinished file out of directory listings of finished ones.
    unfinished = os.path.join(folder, f".{name}.{unique}{UNFINISHED_SUFFIX}")
    try:
        with open(unfinished, "xb") as file:
            yield file
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        raise


def remove_unfinished(folder: Path) -> int:
    """Removes the unfinished files that killed processes left in `folder`; returns their number.

    Only files that have not changed for an hour are removed, because another process may still be writing.
    """
    removed = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(".") and entry.name.endswith(UNFINISHED_SUFFIX):
                with contextlib.suppress(FileNotFoundError):  # another process removed it first
                    if time.time() - entry.stat().st_mtime > ABANDONED_SECONDS:
                        os.unlink(entry.path)
                        removed += 1
    return removed
