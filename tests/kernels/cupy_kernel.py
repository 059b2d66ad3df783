"""The GPU's kernel as those of the CPU are called: everything travels there and back."""

from __future__ import annotations

from functools import cache
from typing import Any

from numpy.typing import NDArray

from app.kernels.cupy_gpu.device import CupyDevice
from app.operators.gather_plan import GatherPlan

name = "cupy"
splits = False


@cache
def open_device() -> CupyDevice:
    """The device of `run`, opened once. Raises NoDevice."""
    return CupyDevice()


def run(
    plan: GatherPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    may_leave_unfinished: bool = False,
) -> int:
    """See `app.kernels.Kernel.run`."""
    return open_device().run(plan, data, indices, out)
