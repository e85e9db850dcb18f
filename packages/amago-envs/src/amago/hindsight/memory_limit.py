"""How much memory a file may cost whose data shrank out of all proportion.

Deflate makes constant frames a thousand times smaller, and so our own writer does; an archive made to fill the
memory looks the same. No proportion tells them apart. Whoever asks for a whole trajectory gets what the machine
can afford. Windows are drawn by the batch, so each may take only what data usually needs. Sizes that no deflate
stream can give are refused before (`StoredArray.check`), and what is inflated passes by in pieces, so that a
window costs no more than itself, however long the file is.

Compressed data is compared with the memory that it takes. What lies in the file uncompressed has as many bytes
there, and its size is no reason to take more of the rest.
"""

import contextlib
import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

HARMLESS_BYTES = 1 << 28
"""Taken from any file."""

USUAL_SHRINKING = 200
"""Data that shrank less than this is taken whatever it needs: its file is large too."""

SHARE_OF_MEMORY = 0.25
"""Of the machine's memory, for a whole trajectory whose data shrank more."""

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_UNKNOWN_MEMORY = 8 << 30


class TrajectoryTooLargeError(RuntimeError):
    """A whole trajectory would take too much memory; nothing is known to be wrong with its file."""


class OutOfProportionError(ValueError):
    """A window would take more memory than data usually needs that takes so little of its file."""


@lru_cache(maxsize=1)
def machine_memory() -> int:
    """Bytes of memory that this process can have: the machine's, or its container's where Linux tells."""
    known = [_UNKNOWN_MEMORY]
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        known = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for place in _limits():
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            known.append(int(place.read_text()))
    return min(known)


def _limits() -> Iterator[Path]:
    """Where limits of this process's control groups may be told, of either version, and of those around them."""
    yield _CGROUPS / "memory.max"
    with contextlib.suppress(OSError, ValueError):
        for line in _OWN_CGROUPS.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (
                (_CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (_CGROUPS, "memory.max")
            )
            inside = Path(group.lstrip("/"))
            yield from (root / part / name for part in (inside, *inside.parents))


def check_whole(nbytes: int, compressed_bytes: int) -> None:
    """Raises TrajectoryTooLargeError if `nbytes` out of so many compressed ones cannot be afforded."""
    most = max(_usual(compressed_bytes), int(SHARE_OF_MEMORY * machine_memory()))
    if nbytes > most:
        raise TrajectoryTooLargeError(
            f"needs {nbytes} bytes of memory to be read whole, out of {compressed_bytes} compressed ones, and "
            f"data that shrank so much may take {most}, a quarter of the memory. Read windows of it (without a "
            "relabeler), write shorter trajectories, take it away, or use a machine with more memory"
        )


def check_window(nbytes: int, compressed_bytes: int) -> None:
    """Raises OutOfProportionError if `nbytes` of a window are more than compressed bytes usually give."""
    most = _usual(compressed_bytes)
    if nbytes > most:
        raise OutOfProportionError(
            f"needs {nbytes} bytes of memory for one window, out of {compressed_bytes} compressed ones in all, "
            f"and a window of data that shrank so much may take {most}. Read shorter windows (max_seq_len), or "
            "write it without compression"
        )


def _usual(compressed_bytes: int) -> int:
    return max(HARMLESS_BYTES, USUAL_SHRINKING * compressed_bytes)
