from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SOAK, slow_but_for
from tests.http.server import run_program
from tests.kernels import emulated
from tests.kernels.guarded import PLANS

NUMBA, NUMPY, EMULATED = "app.kernels.numba_cpu", "app.kernels.reference", "tests.kernels.emulated"
SAMPLES = {
    (NUMBA, "gather"): 20_000,
    (NUMBA, "fill"): 8_000,
    (NUMBA, "gather_elements"): 20_000,
    (NUMBA, "scatternd"): 20_000,
    (NUMBA, "scatter_elements"): 20_000,
    (NUMPY, "gather"): 4_000,
    (NUMPY, "fill"): 2_000,
    (NUMPY, "gather_elements"): 4_000,
    (NUMPY, "scatternd"): 4_000,
    (NUMPY, "scatter_elements"): 4_000,
}
ALL = ",".join(PLANS)
# In `make test` one process tries all kinds of plan on the compiled kernels. NumPy checks what it is given: one kind of
# plan stands for all of its kernel's.
FEW = {(NUMBA, ALL): 400, (NUMPY, "gather"): 120, (EMULATED, "gather"): 200}
# Under `make soak`
MILLIONS = {
    (NUMBA, "gather"): 10,
    (NUMBA, "fill"): 2,
    (NUMBA, "gather_elements"): 5,
    (NUMBA, "scatternd"): 5,
    (NUMBA, "scatter_elements"): 5,
    (NUMPY, "gather"): 10,
    (NUMPY, "fill"): 1,
    (NUMPY, "gather_elements"): 2,
    (NUMPY, "scatternd"): 1,
    (NUMPY, "scatter_elements"): 1,
    (EMULATED, "gather"): 10,
}


def guarded(kernel: str, plans: str, compiled: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    if kernel == EMULATED and emulated.COMPILER is None:
        pytest.skip("needs the Debian package g++")
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.kernels.guarded", kernel, plans, *arguments]
    if kernel == NUMBA:
        return run_program([*command, str(compiled)], timeout=None, compiled=compiled)
    return run_program(command, timeout=None)


def said(run: subprocess.CompletedProcess[str]) -> str:
    """What is needed to run a failure again: the chunk that it happened in, and the message."""
    return f"...{run.stdout[-20:]}\n{run.stderr}"


@pytest.mark.parametrize(
    ("kernel", "plans", "cases"),
    slow_but_for(
        [(*which, count) for which, count in FEW.items()],
        [(*which, count) for table in (FEW, SAMPLES) for which, count in table.items()],
    ),
)
def test_no_access_outside_the_arrays_and_results_as_the_reference(
    kernel: str, plans: str, cases: int, compiled: Path
) -> None:
    run = guarded(kernel, plans, compiled, str(cases), "1")
    assert run.returncode == 0, said(run)


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("kernel", "plans", "seed"), [(*which, 2 + seed) for which, count in MILLIONS.items() for seed in range(count)]
)
def test_a_million_cases_of_each_seed_between_guard_pages(kernel: str, plans: str, seed: int, compiled: Path) -> None:
    assert SOAK
    run = guarded(kernel, plans, compiled, "1000000", str(seed))
    assert run.returncode == 0, said(run)
