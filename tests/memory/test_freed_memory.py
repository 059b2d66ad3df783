"""Freed memory between blocks that stay: it is given back when it is much more than the budget has charged."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from pathlib import Path
from app.memory.budget import Budget, MemoryReservation
from app.memory.malloc_tuning import FreedMemoryLimit, keep_freed_memory
MIB = 1 << 20
keep_freed_memory(8 * MIB)
budget = Budget(160 * MIB, freed=FreedMemoryLimit(8 * MIB))
def private():
    _, resident, shared, *_ = Path("/proc/self/statm").read_bytes().split()
    return (int(resident) - int(shared)) * 4096
before, most, stay, staying = private(), 0, [], MemoryReservation(budget)
for size in range(MIB // 4, 4 * MIB, MIB // 4):  # larger each time, so that nothing fits where something was freed
    reservation, freed = MemoryReservation(budget), []
    for number in range(60 * MIB // size):
        [reservation, staying][number % 16 == 15].charge(size)
        [freed, stay][number % 16 == 15].append(b"x" * size)
    most = max(most, private() - before - budget.used)
    freed.clear()
    reservation.release()
print(most >> 20)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
@pytest.mark.slow
def test_memory_freed_between_blocks_that_stay_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) <= 3 * 8
