"""Memory for large outputs, reused, which the C library would give back to the kernel at once at these sizes.

A fresh output is cleared page by page before it is filled: for 160 MB, twice as much work as the gather itself. Blocks
come back by themselves, when the last view of an output is gone, in whatever thread that happens, even in the middle of
`empty` where the garbage collector runs: so there is no lock here, only operations that are atomic by themselves.
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
"""Bytes of the two cache lines that Intel's processors fetch together. Threads that write one each slow each other as
in one line: 300,000 rows added into 100 took 5.7 ms on two threads and not 4.2."""
_STEPS: Final = 4  # block sizes between two powers of two, so that outputs of similar size share blocks


class OutputBufferPool:
    """Keeps up to `most` bytes of blocks that are free, those used last."""

    def __init__(self, most: int) -> None:
        self._max_bytes = most
        self._kept: deque[mmap.mmap] = deque()

    @property
    def kept(self) -> int:
        """Bytes of the blocks that are free."""
        return sum(map(len, tuple(self._kept)))

    def clear(self) -> None:
        """Give the free blocks back to the kernel, which takes it a millisecond for some of them."""
        while self._kept:
            with suppress(IndexError):  # another thread has taken it
                self._kept.pop()

    def empty(self, items: int, carrier: np.dtype[Any]) -> NDArray[Any]:
        """A new array of one axis, uninitialised as with numpy.empty."""
        size = items * carrier.itemsize
        if not MAX_MMAP_THRESHOLD <= size <= self._max_bytes:
            return np.empty(items, carrier)
        block = self._reuse_or_map(size)
        room: Any = (ctypes.c_char * len(block)).from_buffer(block)
        weakref.finalize(room, self._keep, block).atexit = False
        return np.frombuffer(room, carrier, items)

    def empty_aligned(self, items: int, carrier: np.dtype[Any]) -> NDArray[Any]:
        """A new array as from `empty`, aligned to two cache lines, so that threads do not share a line."""
        size = items * carrier.itemsize
        if MAX_MMAP_THRESHOLD <= size <= self._max_bytes:
            return self.empty(items, carrier)  # it begins with a page
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

    def _keep(self, block: mmap.mmap) -> None:
        self._kept.append(block)
        while self.kept > self._max_bytes:
            with suppress(IndexError):
                self._kept.popleft()


def _release_pages_behind(block: mmap.mmap, size: int) -> None:
    """Give the kernel the pages behind the first `size` bytes, which the output is not charged with."""
    begin = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    if begin < len(block):
        block.madvise(mmap.MADV_DONTNEED, begin, len(block) - begin)
