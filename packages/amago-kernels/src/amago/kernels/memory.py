"""How the C allocator treats large tensors on the CPU: keep what was freed, or hand it back to the kernel.

torch takes its CPU memory from malloc. glibc serves a buffer above 32 MiB with `mmap` and frees it with
`munmap`, and gives back the end of the heap besides, so that a training step which makes and drops the same
buffers again and again touches fresh pages each time: a page fault, and 4 KiB of zeros written, for every
page. Writing a 44 MB result takes some 54 ms like that and 2.3 ms into memory that the process already has
(2 cores of a Zen 5 machine). Neither function changes any number that is computed.
"""

from __future__ import annotations

import ctypes
import sys

# Parameters of mallopt, from glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4
_NEVER = -1


def _glibc() -> ctypes.CDLL | None:
    """The C library of this process if it is glibc, the only one whose allocator is known to listen."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None


def keep_freed_memory() -> bool:
    """From now on, the memory that this process frees stays with it, for the next tensors to use.

    For a process that trains on the CPU; calling it again changes nothing. Large buffers then come from the
    heap, which grows to the peak of what was in use (and the holes between) and never shrinks by itself:
    `release_freed_memory` gives back what is free at that moment. It acts on allocations of the main thread;
    those of other threads come from smaller heaps that glibc still gives back. There is no way to undo it.

    Returns:
        True if the allocator took the settings; False if it is not glibc's, and nothing was changed.
    """
    libc = _glibc()
    if libc is None:
        return False
    no_mmap = libc.mallopt(ctypes.c_int(_M_MMAP_MAX), ctypes.c_int(0))
    no_trim = libc.mallopt(ctypes.c_int(_M_TRIM_THRESHOLD), ctypes.c_int(_NEVER))
    return bool(no_mmap and no_trim)


def release_freed_memory() -> bool:
    """Gives the memory that is free now back to the kernel, after a phase that needed more than the next will.

    Returns:
        True if anything was given back; False if nothing was, or the allocator is not glibc's.
    """
    libc = _glibc()
    return libc is not None and bool(libc.malloc_trim(ctypes.c_size_t(0)))
