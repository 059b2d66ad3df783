"""The loops of a scatter: each update of a block replaces its target or is reduced into it.

There is one loop for rows and one for single items. Both are compiled for each reduction and item type. Where the type
does not matter, they are compiled once per item size. Minimum and maximum share their loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import Address, address_of, ult
from app.kernels.numba_cpu.float_kinds import FLOAT16, FLOATS, KINDS, FloatKind, by_float_kind
from app.kernels.numba_cpu.resolve_indices import prefetch_first, prefetch_update
from app.kernels.numba_cpu.thresholds import ROWS_AHEAD
from app.kernels.numba_cpu.typed_memory import Items, Table, items_at, table_at
from app.tensors.dtypes import DTYPES

REPLACE, ADD, MULTIPLY, EXTREME = range(4)
"""Ways to combine a target with its update."""
OPERATIONS: Final = {"none": REPLACE, "add": ADD, "mul": MULTIPLY, "min": EXTREME, "max": EXTREME}
Combine = Callable[[Any, Any, int], Any]
"""(old item, update, flip): return the new item. See `flip_of`."""


def kind_of(dtype: str, reduction: str, row_bytes: int) -> int:
    """Return the kind of the items in a row, for a reduction of a dtype.

    The kind is the item size, except for floats. Without a reduction, a row counts as a series of the largest integers
    whose size divides the row.
    """
    if reduction == "none":
        return next(size for size in (8, 4, 2, 1) if row_bytes % size == 0)
    return KINDS.get(dtype, DTYPES[dtype].item_size)


def kind_size(kind: int) -> int:
    """Return the bytes per item of a kind."""
    return next((np.dtype(each.item).itemsize for each in FLOATS if each.kind == kind), kind)


def flip_of(dtype: str, reduction: str) -> int:
    """Return the bits to flip so that any minimum or maximum becomes a maximum of signed integers.

    For floats, any value other than 0 selects the minimum.
    """
    row = DTYPES[dtype]
    unsigned = -(1 << (8 * row.item_size - 1)) if row.kind == "uint" else 0
    return ~unsigned if reduction == "min" else unsigned


@inlined
def _replace(old: Any, new: Any, flip: int) -> Any:
    return new


@inlined
def _add(old: Any, new: Any, flip: int) -> Any:
    return old + new


@inlined
def _multiply(old: Any, new: Any, flip: int) -> Any:
    return old * new


@inlined
def _extreme_integer(old: int, new: int, flip: int) -> int:
    return new if new ^ flip > old ^ flip else old


def _extreme(number: FloatKind) -> Combine:
    """Build the minimum or maximum of IEEE 754-2019: the first NaN wins, and -0 is less than 0."""
    widen, bits = number.widen, number.bits

    @inlined
    def extreme(old: Any, new: Any, flip: int) -> Any:
        one, other = widen(old), widen(new)
        if (one < other) | (other < one):
            if flip != 0:
                return new if other < one else old
            return new if other > one else old
        is_first_nan = (other != other) & (one == one)  # noqa: PLR0124
        is_other_zero = (bits(other) < bits(one)) if flip != 0 else (bits(other) > bits(one))
        return new if is_first_nan | ((other == one) & is_other_zero) else old

    return extreme


def _with_branch(extreme: Combine, widen: Callable[[Any], float]) -> Combine:
    """Speed up `extreme` for updates of a single item: most updates do not beat the best one so far.

    The processor predicts the branch, so an update does not wait for the previous one.
    """

    @inlined
    def extreme_of_item(old: Any, new: Any, flip: int) -> Any:
        one, other = widen(old), widen(new)
        if (one < other) if flip != 0 else (other < one):
            return old
        return extreme(old, new, flip)

    return extreme_of_item


def _rounded(number: FloatKind, combine: Combine) -> Combine:
    """Build `combine` for floats: it computes in float32 or float64 and rounds half to even."""
    widen, narrow = number.widen, number.narrow

    @inlined
    def combine_floats(old: Any, new: Any, flip: int) -> Any:
        return narrow(combine(widen(old), widen(new), flip))

    return combine_floats


Loop = Callable[[Any, Address, Items, Items, int, int], None]
"""(job, source, rows, own, begin, end): see `apply_updates`."""


@inner
def _are_equal(items: Items) -> bool:
    differences = 0
    for t in range(len(items)):
        differences |= items[t] ^ items[0]
    return differences == 0


def _loop(number: Any, combine: Combine, combine_one: Combine | None = None) -> Loop:
    """Build the loop over a block of updates for one item type.

    `combine_one` replaces `combine` for consecutive updates of the same item, if another form is faster in that case.
    """
    combine_in_turn = combine_one or combine
    items_of, table_of = items_at(number), table_at(number)

    @inner
    def loop_items(output: Items, updates: Items, items: Items, begin: int, end: int, flip: int) -> None:
        count = end - begin
        if ult(items[0] - begin, count) and _are_equal(items):
            first = np.uint64(items[0])
            total = output[first]  # kept in a register: if in memory, each update would wait for the previous store
            for t in range(len(items)):
                total = combine_in_turn(total, updates[t], flip)
            output[first] = total
            return
        for t in range(len(items)):
            if ult(items[t] - begin, count):  # negative numbers are large as unsigned
                item = np.uint64(items[t])  # skips Numba's check for negative indices
                output[item] = combine(output[item], updates[t], flip)

    @inner
    def loop_rows(output: Table, updates: Table, rows: Items, own: Items, row_bytes: int, flip: int) -> None:
        target, source, last = address_of(output), address_of(updates), len(own) - 1
        prefetch_first(target, row_bytes, source, row_bytes, rows, own)
        for at in range(len(own)):
            later = own[min(at + ROWS_AHEAD, last)]
            prefetch_update(target, row_bytes, source, row_bytes, rows[later], later)
            t = own[at]
            row = rows[t]
            for column in range(updates.shape[1]):
                output[row, column] = combine(output[row, column], updates[t, column], flip)

    @inner
    def loop(job: Any, source: Address, rows: Items, own: Items, begin: int, end: int) -> None:
        count, width = len(rows), job.row_items
        if width != 1:
            output, updates = table_of(job.output, job.rows, width), table_of(source, count, width)
            loop_rows(output, updates, rows, own, job.row_bytes, job.flip)
        else:
            loop_items(items_of(job.output, job.rows), items_of(source, count), rows, begin, end, job.flip)

    return loop


def _by_size(combine: Combine) -> Loop:
    """Build the loop for items whose kind is their size."""
    of_1, of_2, of_4, of_8 = (_loop(number, combine) for number in (np.int8, np.int16, np.int32, np.int64))

    @inner
    def apply(job: Any, source: Address, rows: Items, own: Items, begin: int, end: int) -> None:
        if job.item_kind == 1:
            of_1(job, source, rows, own, begin, end)
        elif job.item_kind == 2:
            of_2(job, source, rows, own, begin, end)
        elif job.item_kind == 4:
            of_4(job, source, rows, own, begin, end)
        else:
            of_8(job, source, rows, own, begin, end)

    return apply


def _by_type(of_integers: Combine, loop_of: Callable[[FloatKind], Loop]) -> Loop:
    """Build the loop for items of any kind."""
    integers, floats = _by_size(of_integers), by_float_kind(loop_of)

    @inner
    def apply(job: Any, source: Address, rows: Items, own: Items, begin: int, end: int) -> None:
        if job.item_kind < FLOAT16:
            integers(job, source, rows, own, begin, end)
        else:
            floats(job.item_kind, job, source, rows, own, begin, end)

    return apply


def _arithmetic(combine: Combine) -> Loop:
    return _by_type(combine, lambda number: _loop(number.item, _rounded(number, combine)))


def _extreme_loop(number: FloatKind) -> Loop:
    extreme = _extreme(number)
    return _loop(number.item, extreme, _with_branch(extreme, number.widen))


_replace_by_size: Final = _by_size(_replace)
_add_by_type: Final = _arithmetic(_add)
_multiply_by_type: Final = _arithmetic(_multiply)
_extreme_by_type: Final = _by_type(_extreme_integer, _extreme_loop)


@inner
def apply_updates(job: Any, source: Address, rows: Items, own: Items, begin: int, end: int) -> None:
    """Apply the updates at `source` to their target rows of the output, if these are in [begin, end).

    For updates of more than one item, `own` selects these updates (see `find_own`).
    """
    if job.operation == REPLACE:
        _replace_by_size(job, source, rows, own, begin, end)
    elif job.operation == ADD:
        _add_by_type(job, source, rows, own, begin, end)
    elif job.operation == MULTIPLY:
        _multiply_by_type(job, source, rows, own, begin, end)
    else:
        _extreme_by_type(job, source, rows, own, begin, end)
