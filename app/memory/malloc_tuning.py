"""Keeps freed memory for the next request instead of giving it back to the kernel.

A body or an output of some megabytes is allocated and freed by each request. Left to itself, the C library returns such
memory at once, and the next request has the kernel find and clear every page again: for 4 MB in, a third of its work.

It also keeps freed memory apart for each thread that asked for it, so that each would come to hold as much as it ever
had at once, and all of them much more than the budget. Here they share: memory is asked for under the interpreter's
lock anyway.

What is freed between blocks that stay is not given back by itself, and requests of many sizes leave ever more of it.
`FreedMemoryLimit` gives it back when the process holds much more than the budget has charged, and `give_back` does so
when the service is idle (see `app.periodic_tasks`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
MAX_MMAP_THRESHOLD: Final = 32 << 20
"""Blocks from this size on come from the kernel and go back to it; the most that glibc takes for this setting."""
MAX_KEPT_BYTES: Final = 256 << 20
_MADV_DONTNEED: Final = 4
_PIECES: Final = 4 << 20, 512 << 10, 64 << 10
"""Sizes of the blocks that `give_back` empties. The kernel takes 0.3 ms for the pages of the largest (Intel Xeon)."""


def keep_freed_memory(size: int) -> bool:
    """Let the process keep up to `size` freed bytes, MAX_KEPT_BYTES at most, for good; False without glibc."""
    mallopt = _of_glibc("mallopt")
    if mallopt is None:
        return False
    kept = min(size, MAX_KEPT_BYTES)
    settings = (_ARENA_MAX, 1), (_MMAP_THRESHOLD, min(MAX_MMAP_THRESHOLD, kept)), (_TRIM_THRESHOLD, kept)
    done = [bool(mallopt(name, value)) for name, value in settings]
    return all(done)


class FreedMemoryLimit:
    """Makes the C library give freed memory back when the process holds too much.

    The bound is what the process held before its first large request, plus what the budget has charged, plus twice what
    `keep_freed_memory` lets it keep (kept blocks of outputs take as much again).
    """

    def __init__(self, kept: int) -> None:
        self.kept = min(kept, MAX_KEPT_BYTES)
        self._trim = _of_glibc("malloc_trim")
        self._before: int | None = None

    def look(self, used: int) -> None:
        """Look whether too much is held beside the `used` bytes of large requests, and give it back if so.

        To be called once in `kept` charged bytes, before they are allocated. It takes some 20 microseconds; giving a
        hundred MiB back takes milliseconds.
        """
        if self._trim is None:
            return
        held = private_bytes()
        if self._before is None:
            self._before = held
        if held - self._before > used + 2 * self.kept:
            self._trim(self.kept)


def give_back() -> None:
    """Give freed memory back to the kernel. Blocks for milliseconds; call from a thread of its own.

    `malloc_trim` alone holds the lock of the allocator while the kernel takes the pages: 40 ms for 256 MiB. The event
    loop waits for that lock when it asks for memory. So free blocks are taken one by one first and their pages dropped
    without the lock; what remains for `malloc_trim` are fragments, and the end of the heap without its pages.
    """
    if _of_glibc("malloc_trim") is None:
        return
    library = ctypes.CDLL(None)
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    library.malloc.argtypes = library.malloc_trim.argtypes = (ctypes.c_size_t,)
    library.free.argtypes = (ctypes.c_void_p,)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.sbrk.argtypes = (ctypes.c_ssize_t,)
    taken: list[int] = []
    left = private_bytes()  # a bound, should the heap never seem to grow
    for size in _PIECES:
        while left >= size:
            end = library.sbrk(0)
            block = library.malloc(size)
            if not block:
                break
            taken.append(block)
            if library.sbrk(0) != end:  # no free block was as large
                break
            first = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
            library.madvise(first, (block + size - first) // mmap.PAGESIZE * mmap.PAGESIZE, _MADV_DONTNEED)
            left -= size
    for block in taken:
        library.free(block)
    library.malloc_trim(0)


def private_bytes() -> int:
    """Bytes of memory that the process holds for itself: neither files nor what it shares with others."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _of_glibc(name: str) -> Callable[..., int] | None:
    """The function of the C library, None if that is not glibc."""
    return getattr(ctypes.CDLL(None), name, None)
