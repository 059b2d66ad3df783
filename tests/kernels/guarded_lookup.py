"""Lookups between guard pages: `python -m tests.kernels.guarded_lookup CASES SEED [CACHE_DIR]`.

Each array of a feature lies against a page that may not be touched, before it or behind it; all but the output are seen
through read-only pages. An access outside, or a write to an input, ends this process with a signal. Without CACHE_DIR
the kernel is NumPy's.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.kernels import numba_cpu, reference
from tests.kernels.guarded import Guarded
from tests.kernels.test_lookup import Case

_PAGES = 64


class Memory:
    """Guarded memory for arrays, one each, used again for each case."""

    def __init__(self) -> None:
        self.rooms: dict[tuple[int, str], Guarded] = {}

    def place(self, number: int, name: str, array: NDArray[Any] | None, at_end: bool) -> Any:
        """A copy of `array` against a guard; one that does not fit stays where it is."""
        if array is None or array.nbytes > _PAGES * 4096:
            return array
        writable = name == "out"
        room = self.rooms.get((number, name)) or Guarded(_PAGES, writable)
        self.rooms[number, name] = room
        start = room.start(array.nbytes, at_end)
        room.back[start : start + array.nbytes] = array.view(np.uint8)
        return room.front[start : start + array.nbytes].view(array.dtype)


def main(cases: int, seed: int, cache: Path | None) -> None:
    """Run so many cases; raises AssertionError where an output is wrong."""
    if cache is not None:
        numba_cpu.configure(cache)
        numba_cpu.warm()
    kernel: Any = reference if cache is None else numba_cpu
    memory = Memory()
    for number in range(cases):
        source = random.Random(seed * 1_000_003 + number)
        case = Case(source, source.randrange(1, 4), joined=False)
        at_end = bool(number & 1)
        placed = []
        for feature, arrays in enumerate(case.arrays):
            fields = arrays._asdict()
            placed.append(
                arrays._replace(**{name: memory.place(feature, name, array, at_end) for name, array in fields.items()})
            )
        case.arrays = placed
        case.check(1 + 2 * (number % 3 == 0), kernel)
        # An index or an offset that is wrong, and whatever else the arrays hold.
        victim = source.choice(case.arrays)
        for name in ("indices", "offsets"):
            array = getattr(victim, name)
            if array is not None and array.size:
                spoiled = array.copy()
                spoiled[source.randrange(array.size)] = source.choice((-1, 2**31 - 1, -(2**31)))
                at = next(place for place, arrays in enumerate(case.arrays) if arrays is victim)
                others = [
                    arrays._replace(**{name: spoiled}) if place == at else arrays
                    for place, arrays in enumerate(case.arrays)
                ]
                assert kernel.lookup(case.plans, others, 1 + number % 2) >= 0


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
