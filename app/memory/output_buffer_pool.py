"""Reuse the memory of large outputs. The C library would return blocks of this size to the kernel immediately.

The kernel clears each page of a fresh output before it is filled. For 160 MB, this is twice the work of the gather
itself. A block returns to the pool automatically when the last view of its output is gone. That may happen in any
thread, even in the middle of `empty` if the garbage collector runs there, so the pool uses no lock, only atomic
operations.
"""

from __future__ import annotations

import ctypes
import mmap
import weakref
from collections import deque
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.memory.malloc_tuning import MAX_MMAP_THRESHOLD

_CACHE_LINES: Final = 128
"""Bytes of the two cache lines that Intel's processors fetch together.

Threads that each write one of the two slow each other down as if they shared a line: adding 300,000 rows into 100 took
5.7 ms on two threads instead of 4.2 ms.
"""
_STEPS: Final = 4  # block sizes between two powers of two, so that outputs of similar size can share blocks


class OutputBufferPool:
    """Keeps up to `most` bytes of free blocks: the most recently used ones."""

    def __init__(self, most: int) -> None:
        self._max_bytes = most
        self._kept: deque[mmap.mmap] = deque()

    @property
    def kept(self) -> int:
        """Number of bytes in the free blocks."""
        return sum(map(len, tuple(self._kept)))

    def clear(self) -> None:
        """Return the free blocks to the kernel. For some of them, this takes about a millisecond."""
        while self._kept:
            with suppress(IndexError):  # another thread has taken it
                self._kept.pop()

    def empty(self, items: int, carrier: np.dtype[Any]) -> NDArray[Any]:
        """Return a new array with one axis, uninitialized as from numpy.empty."""
        size = items * carrier.itemsize
        if not MAX_MMAP_THRESHOLD <= size <= self._max_bytes:
            return np.empty(items, carrier)
        block = self._reuse_or_map(size)
        room: Any = (ctypes.c_char * len(block)).from_buffer(block)
        weakref.finalize(room, self._keep_free, block).atexit = False
        return np.frombuffer(room, carrier, items)

    def empty_aligned(self, items: int, carrier: np.dtype[Any]) -> NDArray[Any]:
        """Like `empty`, but aligned to two cache lines so that threads do not share a line."""
        size = items * carrier.itemsize
        if MAX_MMAP_THRESHOLD <= size <= self._max_bytes:
            return self.empty(items, carrier)  # the array begins at a page boundary
        room = np.empty(size + _CACHE_LINES, np.uint8)
        start = -room.ctypes.data % _CACHE_LINES
        return room[start : start + size].view(carrier)

    def _reuse_or_map(self, size: int) -> mmap.mmap:
        for block in tuple(self._kept):
            if size <= len(block) <= 2 * size:
                with suppress(ValueError):  # another thread has taken it
                    self._kept.remove(block)
                    _release_pages_behind(block, size)
                    return block
        step = 1 << (size.bit_length() - 1) >> (_STEPS.bit_length() - 1)
        block = mmap.mmap(-1, -(-size // step) * step, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with suppress(OSError):  # a kernel without huge pages
            block.madvise(mmap.MADV_HUGEPAGE)
        return block

    def _keep_free(self, block: mmap.mmap) -> None:
        self._kept.append(block)
        while self.kept > self._max_bytes:
            with suppress(IndexError):
                self._kept.popleft()


def _release_pages_behind(block: mmap.mmap, size: int) -> None:
    """Return the pages after the first `size` bytes to the kernel, because they are not charged to the output."""
    begin = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    if begin < len(block):
        block.madvise(mmap.MADV_DONTNEED, begin, len(block) - begin)
