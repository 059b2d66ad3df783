"""The GPU kernel's source on a CPU, between guard pages and under the sanitizer, whatever the indices."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.conftest import samples
from tests.http.server import ROOT
from tests.kernels import emulated

SAMPLE = 8_000
SOAKED = 10_000_000


@pytest.fixture(autouse=True)
def compiler() -> None:
    try:
        emulated.library()
    except ImportError as absent:
        pytest.skip(str(absent))


def guarded(what: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-X", "faulthandler", "-m", "tests.kernels.guarded"]
    command = [*program, emulated.__name__, "gather", what, "1"]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_no_access_outside_the_arrays_and_results_as_the_reference() -> None:
    run = guarded(str(samples(SAMPLE)))
    assert run.returncode == 0, run.stderr


def test_an_access_outside_ends_the_process() -> None:
    run = guarded("overrun")
    assert run.returncode == -signal.SIGSEGV, run.stderr


def test_an_access_that_is_not_aligned_ends_the_process() -> None:
    program = (
        "import numpy as np; from app.kernels.cupy_gpu import kernel_launch as gpu_launch\n"
        "from tests.kernels import emulated\n"
        "from app.operators.gather_plan import GatherPlan\n"
        "gpu_launch.alignment = lambda bits: 16\n"
        "room = np.zeros(160, np.uint8)\n"
        "data = room[-room.ctypes.data % 16 + 8 :][:64]\n"
        "emulated.run(GatherPlan(1, 1, (4,), 16, 1, False, True), data, np.array([1]), np.zeros(16, np.uint8))\n"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.returncode in (-signal.SIGILL, -signal.SIGTRAP, -signal.SIGABRT), run.stderr


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_ten_million_cases_between_guard_pages() -> None:
    run = guarded(str(SOAKED))
    assert run.returncode == 0, run.stderr
