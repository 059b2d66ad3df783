"""The loops of a scatter: each update of a block replaces its target, or is reduced into it.

There is one loop. It is compiled for each reduction and each type of item; what does not depend on the type is compiled
for each size only, and a minimum and a maximum share theirs. An entry is checked as it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types

from app.kernels.numba_cpu.half_floats import bfloat16_of_float, float_of_bfloat16, float_of_half, half_of_float
from app.kernels.numba_cpu.typed_memory import Items, Table, table_at
from app.llvm_intrinsics import Address, inlined, inner, intrinsic
from app.tensors.dtypes import DTYPES

REPLACE, ADD, MULTIPLY, EXTREME = range(4)
"""What is done with a target and its update."""
OPERATIONS: Final = {"none": REPLACE, "add": ADD, "mul": MULTIPLY, "min": EXTREME, "max": EXTREME}
FLOAT16, BFLOAT16, FLOAT32, FLOAT64 = 16, 17, 18, 19
"""The kinds of item beside integers, whose kind is their size in bytes."""
_FLOATS: Final = {"float16": FLOAT16, "bfloat16": BFLOAT16, "float32": FLOAT32, "float64": FLOAT64}
_FLOAT_SIZES: Final = {FLOAT16: 2, BFLOAT16: 2, FLOAT32: 4, FLOAT64: 8}

Combine = Callable[[Any, Any, int], Any]
"""(old item, update, flip): what becomes of the item. For `flip` see `flip_of`."""


def kind_of(dtype: str, reduction: str, row_bytes: int) -> int:
    """The kind of the items that rows are made of, for a reduction of a type.

    It is their size, unless they are floats; a row that is replaced is made of the largest integers that fit.
    """
    if reduction == "none":
        return next(size for size in (8, 4, 2, 1) if row_bytes % size == 0)
    return _FLOATS.get(dtype, DTYPES[dtype].item_size)


def kind_size(kind: int) -> int:
    """Bytes of an item of a kind."""
    return _FLOAT_SIZES.get(kind, kind)


def flip_of(dtype: str, reduction: str) -> int:
    """What makes a maximum of signed integers of any minimum or maximum: the bits to turn in integers.

    Floats change their sign where it is not 0.
    """
    row = DTYPES[dtype]
    unsigned = -(1 << (8 * row.item_size - 1)) if row.kind == "uint" else 0
    return ~unsigned if reduction == "min" else unsigned


_float_of_half: Final = intrinsic(types.float32, (types.uint16,), float_of_half)
_bits_32: Final = intrinsic(
    types.int32, (types.float32,), lambda builder, value: builder.bitcast(value, ir.IntType(32))
)
_bits_64: Final = intrinsic(
    types.int64, (types.float64,), lambda builder, value: builder.bitcast(value, ir.IntType(64))
)
_half_of_float: Final = intrinsic(types.uint16, (types.float32,), half_of_float)
_float_of_bfloat16: Final = intrinsic(types.float32, (types.uint16,), float_of_bfloat16)
_bfloat16_of_float: Final = intrinsic(types.uint16, (types.float32,), bfloat16_of_float)


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


@inlined
def _as_it_is(value: Any) -> Any:
    return value


def _extreme_float(widen: Callable[[Any], float], bits: Callable[[float], int]) -> Combine:
    """The lesser or greater as IEEE 754-2019 has it: a NaN wins, the first one that comes, and -0 is less than 0."""

    @inlined
    def extreme(old: Any, new: Any, flip: int) -> Any:
        one, other = widen(old), widen(new)
        if flip != 0:
            one, other = -one, -other
        is_first_nan = (other != other) & (one == one)  # noqa: PLR0124
        is_greater_zero = (other == one) & (bits(other) > bits(one))
        return new if (other > one) | is_first_nan | is_greater_zero else old

    return extreme


def _with_branch(extreme: Combine, widen: Callable[[Any], float]) -> Combine:
    """`extreme` of floats for single items: most do not beat the best of those before, and a branch is foreseen."""

    @inlined
    def extreme_item(old: Any, new: Any, flip: int) -> Any:
        one, other = widen(old), widen(new)
        if (one < other) if flip != 0 else (other < one):
            return old
        return extreme(old, new, flip)

    return extreme_item


def _in_float32(widen: Callable[[Any], Any], narrow: Callable[[Any], Any], combine: Combine) -> Combine:
    """`combine` of 16-bit floats, in float32 and rounded half to even."""

    @inlined
    def combine_halves(old: Any, new: Any, flip: int) -> Any:
        return narrow(combine(widen(old), widen(new), flip))

    return combine_halves


Bounds = tuple[int, int]
"""(size, wrapped): an entry is below `size`, and `wrapped` is added to a negative one."""
Own = tuple[int, int]
"""(begin, end): the rows that are to be written."""
Loop = Callable[[Table, Table, Items, Bounds, Own, int], int]
"""(output, updates, entries, bounds, own, flip)"""


@inner
def _names_one_row(entries: Items) -> bool:
    for t in range(1, len(entries)):
        if entries[t] != entries[0]:
            return False
    return len(entries) > 1


def _loop(combine: Combine, combine_one: Combine | None = None) -> Loop:
    """The loop over a block of updates, up to the first entry that is out of bounds: the number of that, or -1.

    `combine_one` is for rows of one item, if another form is faster there than in vectors.
    """
    combine_item = combine_one or combine

    @inner
    def loop(output: Table, updates: Table, entries: Items, bounds: Bounds, own: Own, flip: int) -> int:
        size, wrapped = bounds
        begin, end = max(own[0], 0), min(own[1], size)
        count, width = updates.shape
        if width == 1 and _names_one_row(entries):
            row = entries[0] + wrapped if entries[0] < 0 else entries[0]
            if row < 0 or row >= size:
                return 0
            if begin <= row < end:
                # The item stays in a register: in memory each update would wait for the store of the one before.
                item = output[row, 0]
                for t in range(count):
                    item = combine_item(item, updates[t, 0], flip)
                output[row, 0] = item
            return -1
        if width == 1:
            for t in range(count):
                row = entries[t]
                if row < 0:
                    row += wrapped
                if begin <= row < end:
                    output[row, 0] = combine_item(output[row, 0], updates[t, 0], flip)
                elif row < 0 or row >= size:
                    return t
            return -1
        for t in range(count):
            row = entries[t]
            if row < 0:
                row += wrapped
            if begin <= row < end:
                for column in range(width):
                    output[row, column] = combine(output[row, column], updates[t, column], flip)
            elif row < 0 or row >= size:
                return t
        return -1

    return loop


_int8: Final = table_at(np.int8)
_int16: Final = table_at(np.int16)
_int32: Final = table_at(np.int32)
_int64: Final = table_at(np.int64)
_uint16: Final = table_at(np.uint16)
_float32: Final = table_at(np.float32)
_float64: Final = table_at(np.float64)


def _by_size(combine: Combine) -> Callable[..., int]:
    """The loop for items of the job's kind, which is their size."""
    loop = _loop(combine)

    @inner
    def apply(job: Any, target: Address, source: Address, entries: Items, bounds: Bounds, own: Own) -> int:
        count, rows, width, flip = len(entries), job.rows, job.width, job.flip
        if job.kind == 1:
            return loop(_int8(target, rows, width), _int8(source, count, width), entries, bounds, own, flip)
        if job.kind == 2:
            return loop(_int16(target, rows, width), _int16(source, count, width), entries, bounds, own, flip)
        if job.kind == 4:
            return loop(_int32(target, rows, width), _int32(source, count, width), entries, bounds, own, flip)
        return loop(_int64(target, rows, width), _int64(source, count, width), entries, bounds, own, flip)

    return apply


def _by_type(combine: Combine, floats: Loop, doubles: Loop, halves: Loop, bfloats: Loop) -> Callable[..., int]:
    """The loop for items of the job's kind, for integers that of `combine`."""
    of_integers = _by_size(combine)

    @inner
    def apply(job: Any, target: Address, source: Address, entries: Items, bounds: Bounds, own: Own) -> int:
        count, rows, width, flip = len(entries), job.rows, job.width, job.flip
        if job.kind == FLOAT32:
            return floats(_float32(target, rows, width), _float32(source, count, width), entries, bounds, own, flip)
        if job.kind == FLOAT64:
            return doubles(_float64(target, rows, width), _float64(source, count, width), entries, bounds, own, flip)
        if job.kind == FLOAT16:
            return halves(_uint16(target, rows, width), _uint16(source, count, width), entries, bounds, own, flip)
        if job.kind == BFLOAT16:
            return bfloats(_uint16(target, rows, width), _uint16(source, count, width), entries, bounds, own, flip)
        return of_integers(job, target, source, entries, bounds, own)

    return apply


def _arithmetic(combine: Combine) -> Callable[..., int]:
    halves = _in_float32(_float_of_half, _half_of_float, combine)
    bfloats = _in_float32(_float_of_bfloat16, _bfloat16_of_float, combine)
    return _by_type(combine, _loop(combine), _loop(combine), _loop(halves), _loop(bfloats))


def _extreme_loop(widen: Callable[[Any], float], bits: Callable[[float], int]) -> Loop:
    extreme = _extreme_float(widen, bits)
    return _loop(extreme, _with_branch(extreme, widen))


_replace_by_size: Final = _by_size(_replace)
_add_by_type: Final = _arithmetic(_add)
_multiply_by_type: Final = _arithmetic(_multiply)
_extreme_by_type: Final = _by_type(
    _extreme_integer,
    _extreme_loop(_as_it_is, _bits_32),
    _extreme_loop(_as_it_is, _bits_64),
    _extreme_loop(_float_of_half, _bits_32),
    _extreme_loop(_float_of_bfloat16, _bits_32),
)


@inner
def apply_updates(job: Any, target: Address, source: Address, entries: Items, bounds: Bounds, own: Own) -> int:
    """Apply the updates at `source` to those rows of the table at `target` that `entries` name and that are `own`.

    Returns the number of the first entry that is out of bounds, or -1.
    """
    if job.operation == REPLACE:
        return _replace_by_size(job, target, source, entries, bounds, own)
    if job.operation == ADD:
        return _add_by_type(job, target, source, entries, bounds, own)
    if job.operation == MULTIPLY:
        return _multiply_by_type(job, target, source, entries, bounds, own)
    return _extreme_by_type(job, target, source, entries, bounds, own)
