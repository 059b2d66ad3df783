"""The loops of a gradient: slices added to the sums of the rows that they belong to, and sums rounded to the result.

Sums are float32, or float64 for float64. Each type has its own two loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types

from app.kernels.numba_cpu.half_floats import bfloat16_of_float, float_of_bfloat16, float_of_half, half_of_float
from app.kernels.numba_cpu.typed_memory import Items, Table, items_at, table_at
from app.llvm_intrinsics import Address, Builder, inlined, inner, intrinsic, ult

FLOAT16, BFLOAT16, FLOAT32, FLOAT64 = range(4)
"""What a job's `kind` is."""
KINDS: Final = {"float16": FLOAT16, "bfloat16": BFLOAT16, "float32": FLOAT32, "float64": FLOAT64}
_NAN_32: Final = np.float32(np.nan)
_NAN_64: Final = np.float64(np.nan)
_FLOAT16_NAN: Final = 0x7E00
_BFLOAT16_NAN: Final = 0x7FC0


def _or_nan(convert: Callable[[Builder, Any], Any], nan: int) -> Callable[[float], int]:
    """The bits of a float32 in 16 bits; a NaN has always the same."""

    def build(builder: Builder, value: Any) -> Any:
        is_nan = builder.fcmp_unordered("uno", value, value)
        return builder.select(is_nan, ir.IntType(16)(nan), convert(builder, value))

    made: Callable[[float], int] = intrinsic(types.uint16, (types.float32,), build)
    return made


_float_of_half: Final = intrinsic(types.float32, (types.uint16,), float_of_half)
_float_of_bfloat16: Final = intrinsic(types.float32, (types.uint16,), float_of_bfloat16)
_half_of_float: Final = _or_nan(half_of_float, _FLOAT16_NAN)
_bfloat16_of_float: Final = _or_nan(bfloat16_of_float, _BFLOAT16_NAN)


@inlined
def _as_it_is(value: float) -> float:
    return value


@inlined
def _float32_or_nan(value: Any) -> Any:
    return value if value == value else _NAN_32  # noqa: PLR0124  (a NaN is not equal to itself)


@inlined
def _float64_or_nan(value: float) -> float:
    return value if value == value else _NAN_64  # noqa: PLR0124


Adder = Callable[[Address, Address, int, Items, int, int], bool]
"""(address of the first sum, of the first slice, items of each, rows of the slices, begin, end): see `add_slices`."""


def _adder(sum_type: Any, slice_type: Any, widen: Callable[[Any], float]) -> Adder:
    sums_of, slices_of = table_at(sum_type), table_at(slice_type)
    single_sums_of, single_slices_of = items_at(sum_type), items_at(slice_type)

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
        named, count = end - begin, len(rows)
        if width == 1:
            return add_items(single_sums_of(target, named), single_slices_of(source, count), rows, begin)
        return add_rows(sums_of(target, named, width), slices_of(source, count, width), rows, begin)

    return add


def _finisher(narrow: Callable[[float], Any], number: type[np.floating[Any]]) -> Callable[[Table, Table, float], None]:
    @inner
    def finish(result: Table, sums: Table, coefficient: float) -> None:
        """Write the sums times the coefficient, rounded to the result's type."""
        factor = number(coefficient)
        rows, width = result.shape
        for row in range(rows):
            for column in range(width):
                result[row, column] = narrow(sums[row, column] * factor)

    return finish


_uint16_table: Final = table_at(np.uint16)
_float32_table: Final = table_at(np.float32)
_float64_table: Final = table_at(np.float64)
_add_float16: Final = _adder(np.float32, np.uint16, _float_of_half)
_add_bfloat16: Final = _adder(np.float32, np.uint16, _float_of_bfloat16)
_add_float32: Final = _adder(np.float32, np.float32, _as_it_is)
_add_float64: Final = _adder(np.float64, np.float64, _as_it_is)
_finish_float16: Final = _finisher(_half_of_float, np.float32)
_finish_bfloat16: Final = _finisher(_bfloat16_of_float, np.float32)
_finish_float32: Final = _finisher(_float32_or_nan, np.float32)
_finish_float64: Final = _finisher(_float64_or_nan, np.float64)


@inner
def add_slices(job: Any, batch: int, rows: Items, begin: int, end: int) -> bool:
    """Add the slices of a batch whose rows are in [begin, end), in their order: whether a sum has become a NaN."""
    width = job.width
    source = job.gradient + batch * len(rows) * width * job.item_size
    target = job.sums + (batch * job.rows + begin) * width * job.sum_size
    if job.kind == FLOAT32:
        return _add_float32(target, source, width, rows, begin, end)
    if job.kind == FLOAT64:
        return _add_float64(target, source, width, rows, begin, end)
    if job.kind == FLOAT16:
        return _add_float16(target, source, width, rows, begin, end)
    return _add_bfloat16(target, source, width, rows, begin, end)


@inner
def finish_rows(job: Any, begin: int, end: int) -> None:
    """Write rows [begin, end) of the result, counted over all batches, from their sums."""
    count, width = end - begin, job.width
    result = job.result + begin * width * job.item_size
    source = job.sums + begin * width * job.sum_size
    if job.kind == FLOAT64:
        wide_sums = _float64_table(source, count, width)
        _finish_float64(_float64_table(result, count, width), wide_sums, job.coefficient)
        return
    sums = _float32_table(source, count, width)
    if job.kind == FLOAT32:
        _finish_float32(_float32_table(result, count, width), sums, job.coefficient)
    elif job.kind == FLOAT16:
        _finish_float16(_uint16_table(result, count, width), sums, job.coefficient)
    else:
        _finish_bfloat16(_uint16_table(result, count, width), sums, job.coefficient)
