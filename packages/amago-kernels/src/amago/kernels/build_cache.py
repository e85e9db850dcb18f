"""The folder that builds are kept in, which several processes and users may share; `compile` says where it is."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from amago.kernels.compiler import BUILD_SECONDS

STALE_SECONDS = 3600.0  # age of a folder that a killed build left, after which it is removed


def cache_folder() -> Path:
    """Where builds are kept: see `compile`."""
    own = os.environ.get("AMAGO_KERNELS_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache").absolute() / "amago-kernels"


def why_not_writable(folder: Path) -> list[str]:
    """The reason why nothing can be written into a folder that may not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return []
    return [unwritable(folder)]


def unwritable(folder: Path) -> str:
    """What is wrong with a cache that takes no file, and the remedy."""
    return f"the cache {folder} cannot be written to: set AMAGO_KERNELS_CACHE to a folder that can"


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Holds a lock file; the kernel frees it when the holder dies.

    After BUILD_SECONDS of waiting it goes on without: two builds of one file do no harm, the last one stays.
    """
    import fcntl

    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a") as handle:
        give_up = time.monotonic() + BUILD_SECONDS
        while time.monotonic() < give_up:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.05)
        yield  # closing the file frees the lock


def remove_stale(folder: Path) -> None:
    """Removes what builds that were killed long ago left behind."""
    for left in folder.glob(".building-*"):
        try:
            old = time.time() - left.stat().st_mtime > STALE_SECONDS
        except FileNotFoundError:
            continue  # another process was quicker
        if old:
            shutil.rmtree(left, ignore_errors=True)
