"""glibc's heap of this process: how much of it is in use, and a reserve that costs no page faults later."""

from __future__ import annotations

import ctypes
import mmap
from functools import cache
from typing import Any

from aegis.runtime.allocators import active_allocator

__all__ = ["RESERVE", "heap_used", "touch_reserve"]

RESERVE = 32 << 20
"""Bytes that :func:`touch_reserve` prepares."""

_MADV_POPULATE_WRITE = 23  # <linux/mman.h>; Linux 5.14


_NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Info(ctypes.Structure):
    """struct mallinfo2 of <malloc.h>."""

    _fields_ = tuple((name, ctypes.c_size_t) for name in _NAMES)


@cache
def _libc() -> Any:
    """The C library; None where malloc is not glibc's, or older than 2.33."""
    if active_allocator().name != "glibc":
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = _Info
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.sbrk.argtypes = [ctypes.c_ssize_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def heap_used() -> int | None:
    """Bytes that malloc has given out and that were not freed, blocks mapped one by one included; None without glibc.

    Unlike resident memory this does not depend on how free memory lies between what is in use.

    Cost: tens of µs; malloc's lists of free blocks are walked.
    """
    libc = _libc()
    if libc is None:
        return None
    info = libc.mallinfo2()
    return int(info.uordblks + info.hblkhd)


def touch_reserve() -> bool:
    """Makes sure that the heap can grow by :data:`RESERVE` without a page fault; whether it can.

    The end of the heap that no block uses, its top, is made resident. It must not be given back when more is freed:
    start the process with ``MALLOC_TRIM_THRESHOLD_`` and ``MALLOC_TOP_PAD_`` (read when it starts), as
    :data:`aegis.evidence.turns.QUIET_MALLOC` has them. False without glibc or on a kernel before 5.14.
    """
    libc = _libc()
    if libc is None:
        return False
    page = mmap.PAGESIZE
    if libc.mallinfo2().keepcost < RESERVE + page:
        libc.free(libc.malloc(RESERVE - page))  # smaller than what would be mapped by itself
    top, free = libc.sbrk(0), libc.mallinfo2().keepcost
    begin = -(-(top - free) // page) * page
    size = min(top - begin, RESERVE) // page * page
    return size == RESERVE and bool(libc.madvise(begin, size, _MADV_POPULATE_WRITE) == 0)
