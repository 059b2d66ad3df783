"""The CPU kernel compiled by Numba: one function for each type of plan, each in its own module.

Until the function for a plan or for lookups is compiled, the NumPy kernel runs instead. So even on its first startup,
the service can answer requests before it has compiled anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, Final

from numpy.typing import NDArray

from app.kernels import reference
from app.kernels.check_lookup import FeatureArrays
from app.kernels.numba_cpu import (
    backward_kernel,
    block_quantized_kernel,
    gather_elements_kernel,
    gather_kernel,
    lookup_kernel,
    scatter_kernel,
)
from app.kernels.numba_cpu.chunked_job import shared_team
from app.kernels.numba_cpu.compile_kernel import configure
from app.operators.backward_plan import BackwardPlan
from app.operators.gather_block_quantized import BlockQuantizedPlan
from app.operators.gather_elements import GatherElementsPlan
from app.operators.gather_plan import GatherPlan, Plan
from app.operators.lookup_plan import FeaturePlan
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan

__all__ = ["configure", "lookup", "name", "run", "splits", "warm"]

name = "numba"
splits = True
_MODULES: Final[dict[type, Any]] = {
    GatherPlan: gather_kernel,
    GatherElementsPlan: gather_elements_kernel,
    BackwardPlan: backward_kernel,
    BlockQuantizedPlan: block_quantized_kernel,
    ScatterNDPlan: scatter_kernel,
    ScatterElementsPlan: scatter_kernel,
    FeaturePlan: lookup_kernel,
}
"""The module for each type of plan, in the order of compilation."""
_compiled: Final[dict[type, Callable[..., int]]] = {}
"""The functions compiled so far, by type of plan."""


def run(
    plan: Plan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    may_leave_unfinished: bool = False,
    further: Mapping[str, NDArray[Any]] | None = None,
) -> int:
    """See `app.kernels.Kernel.run`."""
    function = _compiled.get(type(plan))
    if function is None:
        return reference.run(plan, data, indices, out, further=further)
    return function(plan, data, indices, out, threads, may_leave_unfinished, **(further or {}))


def lookup(plans: Sequence[FeaturePlan], arrays: Sequence[FeatureArrays], threads: int = 1) -> int:
    """See `app.kernels.CpuKernel.lookup`."""
    function: Callable[..., int] = _compiled.get(FeaturePlan, reference.lookup)
    return function(plans, arrays, threads)


def warm(progress: Callable[[str], None] = lambda text: None) -> None:
    """Compile all functions, or load them from the cache. Each is used as soon as it is ready."""
    shared_team()
    for plan, module in _MODULES.items():
        started = perf_counter()
        module.compiled()
        _compiled[plan] = module.run
        progress(f"kernel for {plan.__name__} ready after {perf_counter() - started:.2f} s")
