"""The gradient of a gather in plain NumPy (see `BackwardPlan`).

Tuples are sorted by the place that they name, in the order of the indices where they name the same; then the slices of
each place are added up, so many places at a time that the sums take a few MiB. Place and number of a tuple are one
integer, so that sorting takes no memory beside the plan's.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        groups = _grouped(plan, found, scratch[len(found) :])
        for block in _blocks(groups.number, _BLOCK_COMPONENTS):
            places[block] = groups.places(block)
        count[0] += groups.number
        _write_sums(plan, data, groups, out)
        return -1
    _fill(plan, out)
    if not data.size:
        return -1
    groups = _grouped(plan, found, scratch[len(found) :])
    if not plan.broadcast_indices:
        _write_sums(plan, data, groups, out)
        return -1
    for batch in range(plan.batches):
        read = data[batch * plan.tuples * plan.slice_items : (batch + 1) * plan.tuples * plan.slice_items]
        written = out[batch * plan.block_items : (batch + 1) * plan.block_items]
        _write_sums(plan, read, groups, written)
    return -1


class _Groups:
    """Tuples in groups that name the same place, both ascending: `number` groups, of which `starts` has where each
    begins among the tuples, and their end behind them.

    `pairs` has for each tuple its place times how many there are, plus its own number; where that would be too large,
    instead of a place how many of `named` are smaller, which has those of all tuples, sorted.
    """

    def __init__(
        self, pairs: NDArray[np.int64], starts: NDArray[np.int64], named: NDArray[np.int64] | None, number: int
    ) -> None:
        self._pairs = pairs
        self._named = named
        self.number = number
        self.starts = starts[: number + 1]

    def tuples(self, part: slice) -> NDArray[np.int64]:
        """The numbers of some of the tuples, in their order."""
        return self._pairs[part] % len(self._pairs)

    def places(self, part: slice) -> NDArray[np.int64]:
        """The places that some of the groups name."""
        found: NDArray[np.int64] = self._pairs[self.starts[:-1][part]] // len(self._pairs)
        return found if self._named is None else self._named[found]


def _blocks(count: int, step: int) -> Iterator[slice]:
    """The numbers below `count`, so many at a time."""
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


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


def _grouped(plan: BackwardPlan, found: NDArray[np.int64], starts: NDArray[np.int64]) -> _Groups:
    """Groups of the tuples whose places were `found`, which is overwritten; and so are `starts`."""
    total, number, named = len(found), 0, None
    if plan.has_long_pairs:
        named = np.sort(found)
    for part in _blocks(total, _BLOCK_COMPONENTS):
        if named is not None:
            found[part] = np.searchsorted(named, found[part])
        found[part] *= total
        found[part] += np.arange(part.start, part.stop)
    found.sort()
    before = -1
    for part in _blocks(total, _BLOCK_COMPONENTS):
        block = found[part] // total
        begins = np.flatnonzero(np.diff(block, prepend=before))
        starts[number : number + len(begins)] = begins + part.start
        number += len(begins)
        before = block[-1]
    starts[number] = total
    return _Groups(found, starts, named, number)


def _write_sums(plan: BackwardPlan, data: NDArray[Any], groups: _Groups, out: NDArray[Any]) -> None:
    """Write the sum of each group of tuples to its place of `out`, one behind the other where the plan is sparse."""
    width = plan.slice_items
    if not width or not groups.number:
        return
    item, sum_type = _TYPES[plan.float_type]
    source, target = data.view(item).reshape(-1, width), out.view(item).reshape(-1, width)
    starts, columns = groups.starts, min(width, _BLOCK_SUMS)
    rows = max(1, _BLOCK_SUMS // columns)
    for part in _blocks(groups.number, rows):
        to = part if plan.sparse else groups.places(part)
        first, last = starts[part.start], starts[part.stop]
        for left in range(0, width, columns):
            right = min(left + columns, width)
            sums = np.zeros((part.stop - part.start, right - left), sum_type)
            for start in range(first, last, rows):
                end = min(start + rows, last)
                group = np.searchsorted(starts[part.start : part.stop], np.arange(start, end), side="right") - 1
                # Not buffered: one slice after the other, in the order of the tuples.
                with np.errstate(all="ignore"):
                    added = source[groups.tuples(slice(start, end)), left:right].astype(sum_type)
                    np.add.at(sums, group, added)
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
