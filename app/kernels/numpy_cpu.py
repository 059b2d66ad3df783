"""The kernel in plain NumPy: what runs where Numba cannot, and the kernel that is easiest to believe.

It checks every component first and copies afterwards, both in blocks of tuples, so that its temporary memory is a few
MiB however large the request is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.kernels import numpy_backward, numpy_lookup
from app.kernels.check_arrays import check_arrays, check_elements_arrays, check_fill, widened
from app.kernels.numpy_indices import BLOCK_COMPONENTS, element_offsets, first_bad
from app.kernels.numpy_scatter import scatter_elements, scatter_nd
from app.operators.backward_plan import BackwardPlan
from app.operators.gather_elements import GatherElementsPlan
from app.operators.gather_plan import GatherPlan, Plan
from app.operators.scatter_plan import ScatterElementsPlan, ScatterNDPlan

name = "numpy"
splits = False
lookup = numpy_lookup.lookup


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


def run_other(
    plan: Plan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    threads: int = 1,
    may_leave_unfinished: bool = False,
    **further: NDArray[Any],
) -> int:
    """`run` in the place of a function for one type of plan, which gets `further` as arguments."""
    return run(plan, data, indices, out, further=further)


def _gather(
    plan: GatherPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    fill: NDArray[Any] | None = None,
    replaced: NDArray[np.int64] | None = None,
) -> int:
    check_arrays(plan, data, indices, out)
    if fill is not None or replaced is not None:
        check_fill(plan, fill, replaced)
        assert fill is not None
        assert replaced is not None
        replaced[0] = _gather_filled(plan, data, indices.reshape(-1, plan.depth), out, fill)
        return -1
    components = indices.reshape(-1, plan.depth)
    step = max(1, BLOCK_COMPONENTS // plan.depth)
    first = first_bad(plan, components, step)
    if first < 0 and out.size:
        _copy(plan, data, components, out, step)
    return first


def _gather_filled(
    plan: GatherPlan, data: NDArray[Any], components: NDArray[Any], out: NDArray[Any], fill: NDArray[Any]
) -> int:
    """Gather with `fill` for each tuple that is out of bounds: how many components are."""
    sizes = np.array(plan.dims, np.int64)
    lowest = -sizes if plan.wrap else np.zeros_like(sizes)
    step = max(1, BLOCK_COMPONENTS // plan.depth)
    replaced = 0
    for start in range(0, len(components), step):
        rows = widened(components[start : start + step])
        outside = (rows < lowest) | (rows >= sizes)
        replaced += int(np.count_nonzero(outside))
        if not out.size:
            continue
        target = out.reshape(-1, plan.slice_items)[start : start + step]
        filled = outside.any(axis=1)
        if data.size:
            offsets = np.arange(start, start + len(rows), dtype=np.int64) // plan.tuples
            for axis, size in enumerate(plan.dims):
                column = rows[:, axis]
                offsets *= size
                offsets += np.where(filled, 0, np.where(column < 0, column + size, column))
            np.take(data.reshape(-1, plan.slice_items), offsets, axis=0, out=target, mode="clip")
        target[filled] = fill
    return replaced


def _gather_elements(plan: GatherElementsPlan, data: NDArray[Any], indices: NDArray[Any], out: NDArray[Any]) -> int:
    check_elements_arrays(plan, data, indices, out)
    first = first_bad(plan, indices.reshape(-1, 1), BLOCK_COMPONENTS)
    if first >= 0:
        return first
    for start in range(0, len(out), BLOCK_COMPONENTS):
        offsets = element_offsets(plan, indices, start)
        np.take(data, offsets, out=out[start : start + BLOCK_COMPONENTS], mode="clip")
    return -1


def _copy(plan: GatherPlan, data: NDArray[Any], components: NDArray[Any], out: NDArray[Any], step: int) -> None:
    """Take the slices; all components are known to be good, and offsets then stay below the number of slices."""
    wide = plan.slice_items > 1
    source = data.reshape(-1, plan.slice_items) if wide else data
    target = out.reshape(-1, plan.slice_items) if wide else out
    for start in range(0, len(target), step):
        places = np.arange(start, min(start + step, len(target)), dtype=np.int64)
        offsets = places // plan.tuples
        if plan.broadcast_indices:
            rows = widened(components[places - offsets * plan.tuples])
        elif plan.batches_per_set > 1:
            rows = widened(components[places - (offsets - offsets // plan.batches_per_set) * plan.tuples])
        else:
            rows = widened(components[start : start + step])
        for axis, size in enumerate(plan.dims):
            column = rows[:, axis]
            offsets *= size
            offsets += np.where(column < 0, column + size, column)
        # mode "clip" writes straight into `out`; "raise" would go through a copy, and nothing is out of range here.
        np.take(source, offsets, axis=0, out=target[start : start + step], mode="clip")


_FUNCTIONS: Final[Mapping[type, Callable[..., int]]] = {
    GatherPlan: _gather,
    GatherElementsPlan: _gather_elements,
    BackwardPlan: numpy_backward.run,
    ScatterNDPlan: scatter_nd,
    ScatterElementsPlan: scatter_elements,
}
