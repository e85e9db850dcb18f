"""Atomic file writes: a temporary file is renamed when it is complete."""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

UNFINISHED_SUFFIX = ".part"
# A write takes seconds, so a temporary file that has not changed for an hour belongs to a dead process.
ABANDONED_SECONDS = 3600.0
_numbers = itertools.count()


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], *, fsync: bool = True) -> Iterator[BinaryIO]:
    """Yields a new binary file that atomically replaces `path` when the block ends.

    The data is written to a hidden temporary file in the same directory, which is then renamed. Readers
    therefore never see a partial file, even after a kill. If the block raises, the temporary file is deleted
    and `path` is unchanged.

    Args:
        path: the file to create or replace; its directory must exist.
        fsync: flush the file to disk before the rename, so that it survives a power failure.

    Raises:
        OSError: if the file cannot be written.
    """
    path = os.fspath(path)
    folder, name = os.path.split(path)
    unique = f"{os.getpid()}-{threading.get_ident()}-{next(_numbers)}"
    # The leading dot and the suffix exclude the temporary file from listings of trajectory files.
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
    """Deletes temporary files that killed processes left in `folder`; returns the number of deleted files.

    Files modified within the last hour are kept, because another process may still be writing them.
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
