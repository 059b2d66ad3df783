from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from app.memory.malloc_tuning import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory(64 << 20)
def work():
    held = [np.ones(2 << 20, np.uint8) for _ in range(8)]
for _ in range(3):
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(kept: str) -> int:
    """Pages that the kernel had to find while 20 times 16 MiB came and went."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, kept], capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_freed_memory_is_used_again_without_the_kernel() -> None:
    assert faults("kept") < 100
    assert faults("returned") > 1000


THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
import numpy as np
from app.memory.malloc_tuning import keep_freed_memory
keep_freed_memory(64 << 20)
barrier = Barrier(8)
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
def work():
    held = [np.ones(1 << 20, np.uint8) for _ in range(32)]
def turns(number):
    for turn in range(8):
        barrier.wait()
        if turn == number:
            work()
with ThreadPoolExecutor(8) as threads:
    before = resident()
    list(threads.map(turns, range(8)))
    print(resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs glibc")
def test_memory_that_one_thread_has_freed_is_used_by_the_others() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < 2 * (32 << 20)  # of which each of eight threads had as much in its turn
