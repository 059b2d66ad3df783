"""The reference kernels, in plain NumPy. Tests compare other kernels to them, and `--kernel numpy` runs them.

They work in blocks, so temporary memory is only a few MiB, regardless of the size of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from numpy.typing import NDArray

from app.kernels.reference import backward, block_quantized
from app.kernels.reference.gather import gather, gather_elements
from app.kernels.reference.lookup import lookup
from app.kernels.reference.scatter import scatter_elements, scatter_nd
from app.operators.backward_plan import BackwardPlan
from app.operators.gather_block_quantized import BlockQuantizedPlan
from app.operators.gather_elements import GatherElementsPlan
from app.operators.gather_plan import GatherPlan, Plan
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan

__all__ = ["lookup", "name", "run", "splits"]

name = "numpy"
splits = False


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
    function = _FUNCTIONS.get(type(plan))
    if function is None:
        raise TypeError(f"no function for a {type(plan).__name__}")
    return function(plan, data, indices, out, **(further or {}))


_FUNCTIONS: Final[Mapping[type, Callable[..., int]]] = {
    GatherPlan: gather,
    GatherElementsPlan: gather_elements,
    BlockQuantizedPlan: block_quantized.run,
    BackwardPlan: backward.run,
    ScatterNDPlan: scatter_nd,
    ScatterElementsPlan: scatter_elements,
}
