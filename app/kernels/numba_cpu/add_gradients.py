"""The loops of a gradient: slices added to the sums of the rows that they belong to, and sums rounded to the result.

Sums are float32, or float64 for float64. Each type has its own two loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from app.compilation.decorators import inner
from app.compilation.intrinsics import Address, ult
from app.kernels.numba_cpu.float_kinds import FloatKind, by_float_kind
from app.kernels.numba_cpu.typed_memory import Items, Table, items_at, table_at

_NANS: Final = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": np.float32(np.nan), "float64": np.float64(np.nan)}
"""The one NaN of results, as items."""
Adder = Callable[[Address, Address, int, Items, int, int], bool]
"""(address of the first sum, of the first slice, items of each, rows of the slices, begin, end): see `add_slices`."""


def _adder(number: FloatKind) -> Adder:
    widen = number.widen
    sums_of, slices_of = table_at(number.sum), table_at(number.item)
    single_sums_of, single_slices_of = items_at(number.sum), items_at(number.item)

    @inner
    def add_items(sums: Items, items: Items, rows: Items, begin: int) -> bool:
        count = len(sums)
        for t in range(len(items)):
            row = rows[t] - begin
            if ult(row, count):  # a negative one is large, unsigned
                place = np.uint64(row)  # Numba does not look whether it is negative
                sums[place] += widen(items[t])
        odd = 0
        for row in range(count):
            odd |= sums[row] != sums[row]
        return odd != 0

    @inner
    def add_rows(sums: Table, slices: Table, rows: Items, begin: int) -> bool:
        odd = 0
        count, width = slices.shape
        for t in range(count):
            row = rows[t] - begin
            if ult(row, len(sums)):
                for column in range(width):
                    total = sums[row, column] + widen(slices[t, column])
                    sums[row, column] = total
                    odd |= total != total  # noqa: PLR0124
        return odd != 0

    @inner
    def add(target: Address, source: Address, width: int, rows: Items, begin: int, end: int) -> bool:
        """Add each slice to its row, where that is one of [begin, end). Returns whether a sum has become a NaN."""
        row_count, count = end - begin, len(rows)
        if width == 1:
            return add_items(single_sums_of(target, row_count), single_slices_of(source, count), rows, begin)
        return add_rows(sums_of(target, row_count, width), slices_of(source, count, width), rows, begin)

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


_add: Final = by_float_kind(_adder)
_finish: Final = by_float_kind(_finisher)


@inner
def add_slices(job: Any, batch: int, rows: Items, begin: int, end: int) -> bool:
    """Add the slices of a batch whose rows are in [begin, end), in their order: whether a sum has become a NaN."""
    width = job.width
    source = job.gradient + batch * len(rows) * width * job.item_size
    target = job.sums + (batch * job.rows + begin) * width * job.sum_size
    return _add(job.kind, target, source, width, rows, begin, end)  # type: ignore[no-any-return]


@inner
def finish_rows(job: Any, begin: int, end: int) -> None:
    """Write rows [begin, end) of the result, counted over all batches, from their sums."""
    width = job.width
    result = job.result + begin * width * job.item_size
    sums = job.sums + begin * width * job.sum_size
    _finish(job.kind, result, sums, end - begin, width, job.coefficient)
