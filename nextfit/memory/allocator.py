"""The C library's allocator, told to keep what a step frees for the next one."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # <malloc.h>
INT_MAX = 2**31 - 1


def keep_freed_memory() -> bool:
    """Make this process keep freed memory instead of returning it to the system; whether that was possible.

    A step's temporaries have the same sizes as the last one's. By default glibc maps large ones afresh, and
    the kernel clears every page again, a fifth of a prefill's time (docs/log.md). Other C libraries are left as
    they are.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, INT_MAX) and mallopt(M_MMAP_MAX, 0))
