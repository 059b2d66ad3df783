"""The CPU kernel compiled by Numba: a function for each type of plan, each in a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from app.kernels.numba_cpu import gather_elements_kernel, gather_kernel
from app.operators.gather_elements import GatherElementsPlan
from app.operators.gather_plan import GatherPlan, Plan

name = "numba"
splits = True

_FUNCTIONS: Final[Mapping[type, Callable[..., int]]] = {
    GatherPlan: gather_kernel.run,
    GatherElementsPlan: gather_elements_kernel.run,
}


def configure(cache_dir: Path) -> None:
    """Keep the compiled code under `cache_dir`, so that the next start loads it; call before anything is compiled."""
    gather_kernel.configure(cache_dir)


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache, all that `run` ever uses."""
    gather_kernel.warm(progress)
    gather_elements_kernel.warm(progress)


def run(
    plan: Plan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    patient: bool = True,
    **further: NDArray[Any],
) -> int:
    """See `app.kernels.Kernel.run`."""
    if type(plan) is GatherPlan and not further:  # most of all calls: no table to look into, no further names to pass
        return gather_kernel.run(plan, data, indices, out, threads, patient)
    function = _FUNCTIONS.get(type(plan))
    if function is None:
        raise TypeError(f"no function for a {type(plan).__name__}")
    return function(plan, data, indices, out, threads, patient, **further)
