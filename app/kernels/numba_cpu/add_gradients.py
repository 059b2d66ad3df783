"""The loops of a gradient: add slices to the sums of their rows, and round the sums to the result.

Sums are float32, or float64 for float64 items. Each float type has its own compiled loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from app.compilation.decorators import inner
from app.compilation.intrinsics import Address, address_of, stack_words, ult
from app.kernels.numba_cpu.float_kinds import FloatKind, by_float_kind
from app.kernels.numba_cpu.resolve_indices import BLOCK, find_own, int64_items, prefetch_first, prefetch_update
from app.kernels.numba_cpu.thresholds import ROWS_AHEAD
from app.kernels.numba_cpu.typed_memory import Items, Table, items_at, table_at

_NANS: Final = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": np.float32(np.nan), "float64": np.float64(np.nan)}
"""The single NaN that results use, as an item of each type."""
ItemAdder = Callable[[Address, Address, int, Items, int, int], bool]
"""(sums address, items address, number of sums, sum number of each item, begin, end): see `add_slices`."""
RowAdder = Callable[[Address, Address, int, int, Items, Items], bool]
"""(sums address, slices address, number of rows of sums, items per row, row of each slice, own)."""
_stack_own: Final = stack_words(BLOCK)


def _item_adder(number: FloatKind) -> ItemAdder:
    widen, sums_of, items_of = number.widen, items_at(number.sum), items_at(number.item)

    @inner
    def add_items(target: Address, source: Address, count: int, rows: Items, begin: int, end: int) -> bool:
        sums, items = sums_of(target, count), items_of(source, len(rows))
        for t in range(len(items)):
            if ult(rows[t] - begin, end - begin):  # negative numbers are large as unsigned
                place = np.uint64(rows[t])  # skips Numba's check for negative indices
                sums[place] += widen(items[t])
        odd = 0
        for row in range(begin, end):
            odd |= sums[row] != sums[row]
        return odd != 0

    return add_items


def _row_adder(number: FloatKind) -> RowAdder:
    widen, sums_of, slices_of = number.widen, table_at(number.sum), table_at(number.item)
    sum_size, item_size = np.dtype(number.sum).itemsize, np.dtype(number.item).itemsize

    @inner
    def add_rows(sums: Table, slices: Table, rows: Items, own: Items) -> bool:
        odd, width, last = 0, slices.shape[1], len(own) - 1
        target, source = address_of(sums), address_of(slices)
        sum_bytes, slice_bytes = width * sum_size, width * item_size
        prefetch_first(target, sum_bytes, source, slice_bytes, rows, own)
        for at in range(len(own)):
            later = own[min(at + ROWS_AHEAD, last)]
            prefetch_update(target, sum_bytes, source, slice_bytes, rows[later], later)
            t = own[at]
            row = rows[t]
            for column in range(width):
                total = sums[row, column] + widen(slices[t, column])
                sums[row, column] = total
                odd |= total != total  # noqa: PLR0124
        return odd != 0

    @inner
    def add(target: Address, source: Address, count: int, width: int, rows: Items, own: Items) -> bool:
        return add_rows(sums_of(target, count, width), slices_of(source, len(rows), width), rows, own)

    return add


Finisher = Callable[[Address, Address, int, int, float], None]


def _finisher(number: FloatKind) -> Finisher:
    narrow, to_sum, nan = number.narrow, number.sum, number.item(_NANS[number.name])
    results_of, sums_of = table_at(number.item), table_at(number.sum)

    @inner
    def finish_table(result: Table, sums: Table, factor: float) -> None:
        rows, width = result.shape
        for row in range(rows):
            for column in range(width):
                value = sums[row, column] * factor
                result[row, column] = narrow(value) if value == value else nan  # noqa: PLR0124  (a NaN is unequal)

    @inner
    def finish(result: Address, sums: Address, rows: int, width: int, coefficient: float) -> None:
        """Write the sums times the coefficient, rounded to the result's type."""
        finish_table(results_of(result, rows, width), sums_of(sums, rows, width), to_sum(coefficient))

    return finish


_add_items: Final = by_float_kind(_item_adder)
_add_rows: Final = by_float_kind(_row_adder)
_finish: Final = by_float_kind(_finisher)


@inner
def add_slices(job: Any, batch: int, rows: Items, begin: int, end: int) -> bool:
    """Add the slices of a batch whose rows are in [begin, end), in order. Returns whether any sum became NaN."""
    width = job.row_items
    slice_bytes = width * job.item_size
    source = job.gradient + batch * len(rows) * slice_bytes
    target = job.sums + batch * job.result_rows * width * job.sum_size
    if width == 1:
        return _add_items(job.item_kind, target, source, job.result_rows, rows, begin, end)  # type: ignore[no-any-return]
    has_nan, block = False, _stack_own()
    for first in range(0, len(rows), BLOCK):
        named = rows[first : first + BLOCK]
        own = int64_items(block, len(named))
        own = own[: find_own(named, begin, end, own)]
        has_nan |= _add_rows(job.item_kind, target, source + first * slice_bytes, job.result_rows, width, named, own)
    return has_nan


@inner
def finish_rows(job: Any, begin: int, end: int) -> None:
    """Write rows [begin, end) of the result from their sums. Rows are numbered across all batches."""
    width = job.row_items
    result = job.result + begin * width * job.item_size
    sums = job.sums + begin * width * job.sum_size
    _finish(job.item_kind, result, sums, end - begin, width, job.coefficient)
