from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SOAK

SAMPLE = 20_000
SOAKED = 10_000_000
CHUNK = 500_000


def guarded(kernel: str, compiled: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    extra = [str(compiled)] if kernel == "numba_cpu" else []
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", "tests.kernels.guarded", kernel, *arguments, *extra],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )


@pytest.mark.parametrize("kernel", ["numpy_cpu", "numba_cpu"])
def test_no_access_outside_the_arrays_and_results_as_the_reference(kernel: str, compiled: Path) -> None:
    run = guarded(kernel, compiled, str(SAMPLE), "1")
    assert run.returncode == 0, run.stderr


def test_an_access_outside_ends_the_process(compiled: Path) -> None:
    run = guarded("numba_cpu", compiled, "overrun", "1")
    assert run.returncode == -signal.SIGSEGV, run.stderr


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kernel", ["numpy_cpu", "numba_cpu"])
@pytest.mark.parametrize("seed", range(2, 2 + SOAKED // CHUNK))
def test_ten_million_cases_between_guard_pages(kernel: str, seed: int, compiled: Path) -> None:
    assert SOAK
    run = guarded(kernel, compiled, str(CHUNK), str(seed))
    assert run.returncode == 0, run.stderr
