from __future__ import annotations

import ctypes
import mmap
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from numpy.typing import NDArray

from app.kernels import reference
from app.operators.gather_plan import Plan
from tests.conftest import SOAK, slow_but_for
from tests.for_each import for_each
from tests.http.server import run_program
from tests.kernels import emulated
from tests.kernels.guarded import PLANS, Fuzz

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
    (EMULATED, "gather"): 800,
}
ALL = ",".join(PLANS)
# In `make test` one process tries all kinds of plan on the compiled kernels. NumPy checks what it is given: one kind of
# plan stands for all of its kernel's. The emulated kernel has a sample of its own, in test_emulated.py.
FEW = {(NUMBA, ALL): 400, (NUMPY, "gather"): 120}
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
    (EMULATED, "gather"): 1,
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


@pytest.mark.parametrize("what", ["overrun", "write"])
@pytest.mark.parametrize(
    ("kernel", "plans"), slow_but_for([(NUMBA, "gather")], [which for which in SAMPLES if which[0] != NUMPY])
)
def test_an_access_outside_or_a_write_to_an_input_ends_the_process(
    what: str, kernel: str, plans: str, compiled: Path
) -> None:
    run = guarded(kernel, plans, compiled, what, "1")
    assert run.returncode == -signal.SIGSEGV, said(run)


class Faulty:
    """A kernel that is right but for what `spoil` makes of its output and its result."""

    splits = False

    def __init__(self, spoil: Callable[[NDArray[Any], int], int]) -> None:
        self._spoil = spoil

    def run(
        self,
        plan: Plan,
        data: NDArray[Any],
        indices: NDArray[Any],
        out: NDArray[Any],
        threads: int,
        further: Mapping[str, NDArray[Any]] | None = None,
    ) -> int:
        return self._spoil(out, reference.run(plan, data, indices, out, further=further))


def flip(out: NDArray[Any], first: int, at: int) -> int:
    """Change the byte that lies `at` bytes from the output's beginning, unless it is in a page that faults."""
    address = out.ctypes.data + at
    if out.nbytes and address % mmap.PAGESIZE not in (0, mmap.PAGESIZE - 1):
        ctypes.memset(address, ctypes.string_at(address, 1)[0] ^ 1, 1)
    return first


FAULTS: dict[str, Callable[[NDArray[Any], int], int]] = {
    "first bad component 0, not -1": lambda out, first: max(first, 0),
    "first bad component -1, not": lambda out, first: -1,
    r"first bad component \d+, not \d": lambda out, first: first + (first > 0),
    "other bytes, the first at": lambda out, first: flip(out, first, out.nbytes // 2),
    "bytes written before|other bytes": lambda out, first: flip(out, first, -1),
    "bytes written behind|other bytes": lambda out, first: flip(out, first, out.nbytes),
}


# Where bad components are filled for, none is found, and so none can be missed or be another one.
MISSED = ("first bad component -1, not", r"first bad component \d+, not \d")


@pytest.mark.slow
@for_each(
    ("fault", "plans"),
    [(fault, plans) for fault in FAULTS for plans in PLANS if not (PLANS[plans].fills and fault in MISSED)],
)
def test_a_kernel_that_is_wrong_is_found(fault: str, plans: str) -> None:
    """The fuzz itself sees each kind of fault, and says which; beside a part of a split lies another part."""
    with pytest.raises(AssertionError, match=fault):
        Fuzz(Faulty(FAULTS[fault]), PLANS[plans]).chunk(1, 0, 1000)
