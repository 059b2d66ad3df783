"""The gradient of a gather in plain NumPy (see `BackwardPlan`).

Tuples are sorted by the place that they name, in the order of the indices where they name the same; then the slices of
each place are added up, so many places at a time that the sums take a few MiB.
"""

from __future__ import annotations

from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from app.kernels.backward_arrays import check_backward_arrays, sets_of
from app.kernels.check_arrays import widened
from app.operators.backward_plan import BackwardPlan

_BLOCK_COMPONENTS: Final = 1 << 16
_BLOCK_SUMS: Final = 1 << 18
"""Sums that are made at a time."""
_TYPES: Final[dict[str, tuple[np.dtype[Any], np.dtype[Any]]]] = {
    "float16": (np.dtype(np.float16), np.dtype(np.float32)),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)),
    "float32": (np.dtype(np.float32), np.dtype(np.float32)),
    "float64": (np.dtype(np.float64), np.dtype(np.float64)),
}
"""Of each float type: its items, and its sums."""


def run(
    plan: BackwardPlan,
    data: NDArray[Any],
    indices: NDArray[Any],
    out: NDArray[Any],
    scratch: NDArray[np.int64] | None = None,
    places: NDArray[np.int64] | None = None,
    count: NDArray[np.int64] | None = None,
) -> int:
    """See `app.kernels.Kernel.run`: `data` is grad_output, `out` grad_data, or grad_values where the plan is sparse.

    `scratch` is memory to work in, of plan.scratch_items. A sparse one writes to `places` which slice of grad_data each
    slice of `out` is, and adds to `count` how many there are; what `out` holds behind them is undefined.
    """
    check_backward_arrays(plan, data, indices, out, scratch, places, count)
    assert scratch is not None
    if plan.gather.batches_per_set > 1:
        for first, part, read, chosen, written in sets_of(plan, data, indices, out):
            bad = run(part, read, chosen, written, scratch)
            if bad >= 0:
                return first + bad
        return -1
    found = _flat_places(plan, indices, scratch[: plan.index_tuples])
    if isinstance(found, int):
        return found
    if plan.sparse:
        assert places is not None
        assert count is not None
        order, starts = _grouped(found)
        named = found[order[starts[:-1]]]
        places[: len(named)] = named
        count[0] += len(named)
        _write_sums(plan, data, order, starts, out, None)
        return -1
    _fill(plan, out)
    if not data.size:
        return -1
    order, starts = _grouped(found)
    named = found[order[starts[:-1]]]
    if not plan.broadcast_indices:
        _write_sums(plan, data, order, starts, out, named)
        return -1
    for batch in range(plan.batches):
        read = data[batch * plan.tuples * plan.slice_items : (batch + 1) * plan.tuples * plan.slice_items]
        written = out[batch * plan.block_items : (batch + 1) * plan.block_items]
        _write_sums(plan, read, order, starts, written, named)
    return -1


def _flat_places(plan: BackwardPlan, indices: NDArray[Any], target: NDArray[np.int64]) -> int | NDArray[np.int64]:
    """The slice of grad_data that each tuple names, counted over all batches; or the first bad component."""
    components = indices.reshape(-1, plan.depth)
    sizes = np.array(plan.dims, np.int64)
    lowest = -sizes if plan.wrap else np.zeros_like(sizes)
    step = max(1, _BLOCK_COMPONENTS // plan.depth)
    for start in range(0, len(components), step):
        block = widened(components[start : start + step])
        bad = (block < lowest) | (block >= sizes)
        if bad.any():
            return start * plan.depth + int(bad.argmax())
        flat = np.arange(start, start + len(block), dtype=np.int64)
        flat //= max(len(components) if plan.broadcast_indices else plan.tuples, 1)  # the batch
        for axis, size in enumerate(plan.dims):
            flat *= size
            flat += np.where(block[:, axis] < 0, block[:, axis] + size, block[:, axis])
        target[start : start + step] = flat
    return target


def _grouped(found: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tuples by the place that they name, and where each other place begins among them, and the end."""
    order = np.argsort(found, kind="stable")
    named = found[order]
    begins = np.flatnonzero(named[1:] != named[:-1]) + 1
    return order, np.concatenate(([0] if len(found) else [], begins, [len(found)])).astype(np.int64)


def _write_sums(
    plan: BackwardPlan,
    data: NDArray[Any],
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    out: NDArray[Any],
    named: NDArray[np.int64] | None,
) -> None:
    """Write the sum of each group of tuples to its place of `out`, one behind the other where there are no `named`."""
    width = plan.slice_items
    if not width or not len(order):
        return
    item, sum_type = _TYPES[plan.float_type]
    source, target = data.view(item).reshape(-1, width), out.view(item).reshape(-1, width)
    groups = len(starts) - 1
    columns = min(width, _BLOCK_SUMS)
    rows = max(1, _BLOCK_SUMS // columns)
    for first in range(0, groups, rows):
        last = min(first + rows, groups)
        to = slice(first, last) if named is None else named[first:last]
        for left in range(0, width, columns):
            right = min(left + columns, width)
            sums = np.zeros((last - first, right - left), sum_type)
            for start in range(starts[first], starts[last], rows):
                tuples = np.arange(start, min(start + rows, starts[last]))
                group = np.searchsorted(starts[first : last + 1], tuples, side="right") - 1
                # Not buffered: one slice after the other, in the order of `tuples`.
                with np.errstate(all="ignore"):
                    np.add.at(sums, group, source[order[tuples], left:right].astype(sum_type))
            target[to, left:right] = _finished(sums, plan.coefficient, item)


def _fill(plan: BackwardPlan, out: NDArray[Any]) -> None:
    """All of `out` as where nothing is added: zeros times the coefficient."""
    item, sum_type = _TYPES[plan.float_type]
    out.view(item)[...] = _finished(np.zeros(1, sum_type), plan.coefficient, item)[0]


def _finished(sums: NDArray[Any], coefficient: float, item: np.dtype[Any]) -> NDArray[Any]:
    """Sums times the coefficient, rounded to the type of the items; every NaN the same."""
    with np.errstate(all="ignore"):
        sums *= sums.dtype.type(coefficient)
        rounded = sums.astype(item)
    rounded[np.isnan(sums)] = item.type("nan")
    return rounded
