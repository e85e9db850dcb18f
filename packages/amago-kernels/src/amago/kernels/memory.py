"""Settings of the C allocator for large CPU tensors: keep freed memory, or return it to the kernel.

torch allocates CPU memory by malloc. glibc allocates a buffer above 32 MiB by `mmap` and frees it by `munmap`, and
trims the end of the heap, so a training step that allocates and frees the same buffers touches new pages each
time: a page fault, and 4 KiB of zeros written, for every page. Writing a 44 MB result takes some 54 ms like that
and 2.3 ms into memory that the process already has (2 cores of a Zen 5 machine). No computed number changes.
"""

from __future__ import annotations

import ctypes
import sys

# Parameters of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = -1


def _glibc() -> ctypes.CDLL | None:
    """The C library of this process if it is glibc, the only one with these settings."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def keep_freed_memory() -> bool:
    """Makes this process keep the memory that it frees, for the next tensors.

    For a process that trains on the CPU; calling it again has no effect. Large buffers then come from the heap,
    which grows to the peak of memory in use (and fragmentation) and does not shrink by itself:
    `release_freed_memory` returns the memory that is free at that moment. It affects allocations of the main
    thread; those of other threads come from smaller heaps that glibc still trims. It cannot be undone.

    Returns:
        True if the settings were applied; False if the allocator is not glibc's.
    """
    libc = _glibc()
    if libc is None:
        return False
    no_mmap = libc.mallopt(ctypes.c_int(_M_MMAP_MAX), ctypes.c_int(0))
    no_trim = libc.mallopt(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(_NEVER))
    return bool(no_mmap and no_trim)


def release_freed_memory() -> bool:
    """Returns free memory to the kernel, after a phase that needed more than the next one will.

    Returns:
        True if any memory was returned; False if none was, or the allocator is not glibc's.
    """
    libc = _glibc()
    return libc is not None and bool(libc.malloc_trim(ctypes.c_size_t(0)))
