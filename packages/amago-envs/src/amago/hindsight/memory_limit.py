"""How much memory a file may cost whose data shrank out of all proportion.

Deflate makes constant frames a thousand times smaller, and so our own writer does; an archive made to fill the
memory looks the same. No proportion tells them apart, so what counts is what the reader can afford. Sizes that no
deflate stream can give are refused before (`StoredArray.check`), and what is inflated passes by in pieces, so that
a window costs no more than itself, however long the file is.
"""

import contextlib
import os
from functools import lru_cache
from pathlib import Path

HARMLESS_BYTES = 1 << 28
"""Taken from any file."""

USUAL_SHRINKING = 200
"""Data that shrank less than this is taken whatever it needs: its file is large too."""

SHARE_OF_MEMORY = 0.25
"""Of the machine's memory, for data that shrank more."""

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_UNKNOWN_MEMORY = 8 << 30


@lru_cache(maxsize=1)
def machine_memory() -> int:
    """Bytes of memory that this process can have: the machine's, or its container's where Linux tells."""
    known = [_UNKNOWN_MEMORY]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError):  # not there, or "max"
        known.append(int(_CGROUP_LIMIT.read_text()))
    return min(known)


def check_affordable(nbytes: int, file_bytes: int) -> None:
    """Raises ValueError if `nbytes` out of a file of `file_bytes` are more than can be afforded."""
    if nbytes <= max(HARMLESS_BYTES, USUAL_SHRINKING * file_bytes):
        return
    most = int(SHARE_OF_MEMORY * machine_memory())
    if nbytes > most:
        raise ValueError(
            f"{nbytes} bytes of memory are needed for what lies in a file of {file_bytes}, and data that shrank "
            f"so much may take {most}, a quarter of the memory: read windows of it, or write shorter trajectories"
        )
