from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from app.dispatch.allocator import keep_freed_memory
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
