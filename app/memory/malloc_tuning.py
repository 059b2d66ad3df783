"""Keep freed memory for the next request instead of returning it to the kernel.

Each request allocates and frees a body or an output of a few megabytes. By default, the C library returns blocks of
this size to the kernel immediately, and for the next request, the kernel has to find and clear every page again. With 4
MB of input, this is a third of the work of a request. The C library also keeps freed memory separately for each thread
that allocates. Each thread would eventually hold its own peak, and all threads together would hold much more than the
budget. So all threads share one arena here; allocations hold the interpreter's lock anyway.

Freed memory that lies between blocks in use is not returned automatically, and it grows as requests of many sizes come
and go. `FreedMemoryLimit` returns it when the process holds much more than the budget has charged, and
`return_freed_memory` returns it when the service is idle (see `app.periodic_tasks`).
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
"""Blocks of at least this size are mapped from the kernel and returned to it.

This is the highest value that glibc accepts.
"""
MAX_KEPT_BYTES: Final = 256 << 20
_MADV_DONTNEED: Final = 4
_PIECES: Final = 4 << 20, 512 << 10, 64 << 10
"""Sizes of the blocks that `return_freed_memory` empties.

The kernel takes 0.3 ms to release the pages of the largest (Intel Xeon).
"""


def keep_freed_memory(size: int) -> bool:
    """Let the process keep up to `size` freed bytes permanently, at most MAX_KEPT_BYTES.

    Returns False without glibc.
    """
    mallopt = _glibc_function("mallopt")
    if mallopt is None:
        return False
    kept = min(size, MAX_KEPT_BYTES)
    settings = (_ARENA_MAX, 1), (_MMAP_THRESHOLD, min(MAX_MMAP_THRESHOLD, kept)), (_TRIM_THRESHOLD, kept)
    done = [bool(mallopt(name, value)) for name, value in settings]
    return all(done)


class FreedMemoryLimit:
    """Makes the C library return freed memory when the process holds too much of it.

    The limit is the sum of what the process held before its first large request, what the budget has charged, and twice
    what `keep_freed_memory` lets it keep (because the blocks kept for outputs may use the same amount again).
    """

    def __init__(self, kept: int) -> None:
        self.kept = min(kept, MAX_KEPT_BYTES)
        self._trim = _glibc_function("malloc_trim")
        self._before: int | None = None

    def check(self, used: int) -> None:
        """Check whether the process holds too much beyond the `used` bytes of large requests, and if so, return memory.

        Call this each time `kept` more bytes have been charged, before they are allocated. The check takes about 20
        microseconds. Returning a hundred MiB takes milliseconds.
        """
        if self._trim is None:
            return
        held = private_bytes()
        if self._before is None:
            self._before = held
        if held - self._before > used + 2 * self.kept:
            self._trim(self.kept)


def return_freed_memory() -> None:
    """Return freed memory to the kernel. Blocks for milliseconds, so call it from a separate thread.

    `malloc_trim` alone holds the allocator's lock while the kernel releases the pages (40 ms for 256 MiB), and the
    event loop waits for that lock when it allocates. So this function first allocates the free blocks one by one, and
    releases their pages without the lock. That leaves only fragments for `malloc_trim`, and the end of the heap, whose
    pages have already been released.
    """
    if _glibc_function("malloc_trim") is None:
        return
    library = ctypes.CDLL(None)
    library.malloc.restype = library.sbrk.restype = ctypes.c_void_p
    library.malloc.argtypes = library.malloc_trim.argtypes = (ctypes.c_size_t,)
    library.free.argtypes = (ctypes.c_void_p,)
    library.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    library.sbrk.argtypes = (ctypes.c_ssize_t,)
    taken: list[int] = []
    left = private_bytes()  # a limit in case the heap never seems to grow
    for size in _PIECES:
        while left >= size:
            end = library.sbrk(0)
            block = library.malloc(size)
            if not block:
                break
            taken.append(block)
            if library.sbrk(0) != end:  # the heap has grown, so no free block was large enough
                break
            first = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
            library.madvise(first, (block + size - first) // mmap.PAGESIZE * mmap.PAGESIZE, _MADV_DONTNEED)
            left -= size
    for block in taken:
        library.free(block)
    library.malloc_trim(0)


def private_bytes() -> int:
    """Return the size of the process's private memory in bytes, excluding files and memory shared with other
    processes.
    """
    _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _glibc_function(name: str) -> Callable[..., int] | None:
    """Return a function of the C library, or None if the library is not glibc."""
    return getattr(ctypes.CDLL(None), name, None)
