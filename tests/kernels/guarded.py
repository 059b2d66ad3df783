"""Kernels between guard pages: `python -m tests.kernels.guarded KERNEL CASES SEED [CACHE_DIR]`.

Data, indices and output each lie against a page that may not be touched, now before them, now behind; data and indices
are read-only pages. An access outside, or a write to an input, ends this process with a signal, which is why the test
runs it apart.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.spec.plan import GatherPlan
from tests.kernels.reference import gather, make_case, random_plan

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_NONE = 0
_ROOM = 10 << 20


class Guarded:
    """A stretch of memory with a page on either side that faults."""

    def __init__(self) -> None:
        size = _ROOM + 2 * mmap.PAGESIZE
        start = _LIBC.mmap(None, size, _NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        assert start not in (None, ctypes.c_void_p(-1).value), ctypes.get_errno()
        self._start = start + mmap.PAGESIZE
        self._end = self._start + _ROOM

    def place(self, content: NDArray[Any], at_end: bool, writable: bool) -> NDArray[Any]:
        """A copy of `content` against one of the two guards; all other pages fault too, up to a page's remainder."""
        assert content.nbytes <= _ROOM
        pages = max(1, -(-content.nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        first = self._end - pages if at_end else self._start
        self._protect(self._start, _ROOM, _NONE)
        self._protect(first, pages, mmap.PROT_READ | mmap.PROT_WRITE)
        address = self._end - content.nbytes if at_end else self._start
        room: Any = (ctypes.c_char * content.nbytes).from_address(address)
        array: NDArray[Any] = np.frombuffer(room, content.dtype)
        array[:] = content
        if not writable:
            self._protect(first, pages, mmap.PROT_READ)
            array.flags.writeable = False
        return array

    @staticmethod
    def _protect(address: int, size: int, access: int) -> None:
        assert _LIBC.mprotect(address, size, access) == 0, ctypes.get_errno()


def fuzz(kernel: Any, count: int, seed: int) -> None:
    """Random cases, each compared with the reference."""
    source = random.Random(seed)
    memory = [Guarded() for _ in range(3)]
    for number in range(count):
        case = make_case(random_plan(source), source, spoiled=source.choice((0, 0, 0, 1, 3)))
        ends = [source.random() < 0.5 for _ in memory]
        expected, bad = gather(case.plan, case.data.tobytes(), case.indices.tolist())
        data = memory[0].place(case.data, ends[0], writable=False)
        indices = memory[1].place(case.indices, ends[1], writable=False)
        out = memory[2].place(case.out(), ends[2], writable=True)
        first = kernel.run(case.plan, data, indices, out)
        same = first == bad and (bad >= 0 or out.tobytes() == expected)
        assert same, f"case {number} of seed {seed}: {case.plan}, first bad {first}, expected {bad}"


def overrun(kernel: Any) -> None:
    """Give a kernel less memory than its plan says, to show that the guards see it."""
    plan = GatherPlan(1, 1000, (4096,), 1, 8, False, True)
    short = Guarded().place(np.zeros(4095, np.uint64), at_end=True, writable=False)
    kernel.run(plan, short, np.full(1000, -1), np.zeros(1000, np.uint64))


if __name__ == "__main__":
    chosen = importlib.import_module(f"app.kernels.{sys.argv[1]}")
    if len(sys.argv) > 4:
        chosen.configure(Path(sys.argv[4]))
    if sys.argv[2] == "overrun":
        overrun(chosen)
    else:
        fuzz(chosen, int(sys.argv[2]), int(sys.argv[3]))
