"""What a scatter does with the single items of a block: each update replaces its target, or is reduced into it.

As `combine_slices.py`, but a target is the number of an item of the output, and the updates lie one behind the other:
6.2 ns each in the loops for slices, and 0.6 in these (EPYC, float32, add).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numba.core.cgutils
from llvmlite import ir
from numba import types

from app.kernels.numba_cpu.memory_intrinsics import item_pointer
from app.kernels.numba_cpu.reductions import (
    COPIES,
    COPY_ROWS,
    ITEM_COPIES,
    NARROW_CODES,
    REDUCTION_CODES,
    Combine,
    Reduction,
    choose_combine,
    combine_items,
    make_cases,
    reduction_of,
)
from app.llvm_intrinsics import Address, Builder, inlined, inner, intrinsic

_cgutils: Any = numba.core.cgutils
_INT64: Final = ir.IntType(64)
_BIT: Final = ir.IntType(1)

_SET_ASIDE: Final = (1 << ITEM_COPIES) - 1 | sum(
    1 << code for (reduction, _, _), code in REDUCTION_CODES.items() if reduction != "mul" and code not in NARROW_CODES
)
"""A bit for each code whose updates may go to a spare item: floats of 16 bits take several times as long as others, and
products of whatever numbers come may be subnormal, for which some processors need a hundred times as long."""


def _number(builder: Builder, numbers: Any, index: Any) -> Any:
    return builder.load(item_pointer(builder, numbers, index), align=8, typ=_INT64)


def _for_each_item(builder: Builder, base: Any, numbers: Any, updates: Any, count: Any, kind: Any, body: Any) -> None:
    with _cgutils.for_range(builder, count, intp=_INT64) as loop:
        # Not `inbounds`: the number of a spare item leads out of the output.
        target = builder.gep(base, [_number(builder, numbers, loop.index)], source_etype=kind)
        body(target, builder.gep(updates, [loop.index], inbounds=True, source_etype=kind))


def _copy(builder: Builder, width: int, base: Any, numbers: Any, updates: Any, count: Any) -> None:
    kind = ir.IntType(8 * width)
    items, source = (builder.inttoptr(address, kind.as_pointer()) for address in (base, updates))

    def copy(target: Any, update: Any) -> None:
        builder.store(builder.load(update, align=1, typ=kind), target, align=1)

    _for_each_item(builder, items, numbers, source, count, kind, copy)


def _reduce(builder: Builder, reduction: Reduction, base: Any, numbers: Any, updates: Any, count: Any) -> None:
    kind = reduction.kind
    items, source = (builder.inttoptr(address, kind.as_pointer()) for address in (base, updates))

    def loop(combine: Combine) -> None:
        done = _cgutils.alloca_once_value(builder, _BIT(0))
        with builder.if_then(_is_one_place(builder, numbers, count)):
            builder.store(_reduce_into_one(builder, reduction, combine, items, numbers, source, count), done)
        with builder.if_then(builder.not_(builder.load(done, typ=_BIT))):
            body = partial(combine_items, builder, kind, combine)
            _for_each_item(builder, items, numbers, source, count, kind, body)

    choose_combine(builder, reduction, source, count, loop)


def _is_one_place(builder: Builder, numbers: Any, count: Any) -> Any:
    """Whether there are several targets, all of them the same."""
    found = _cgutils.alloca_once_value(builder, _BIT(0))
    with builder.if_then(builder.icmp_signed(">", count, _INT64(1))):
        first = _number(builder, numbers, _INT64(0))
        last = _number(builder, numbers, builder.sub(count, _INT64(1)))
        with builder.if_then(builder.icmp_unsigned("==", first, last)):
            others = _cgutils.alloca_once_value(builder, _INT64(0))
            with _cgutils.for_range(builder, count, intp=_INT64) as loop:
                different = builder.xor(_number(builder, numbers, loop.index), first)
                builder.store(builder.or_(builder.load(others, typ=_INT64), different), others)
            builder.store(builder.icmp_unsigned("==", builder.load(others, typ=_INT64), _INT64(0)), found)
    return builder.load(found, typ=_BIT)


def _reduce_into_one(
    builder: Builder, reduction: Reduction, combine: Combine, items: Any, numbers: Any, updates: Any, count: Any
) -> Any:
    """The updates one after the other into the one target, which stays in a register meanwhile: in memory each would
    wait for the store of the one before. Whether it is done: not where the result is a NaN, of which the other loop
    might make another one, so that its bits would depend on what lies in a block.
    """
    kind = reduction.kind
    target = builder.gep(items, [_number(builder, numbers, _INT64(0))], source_etype=kind)
    item = _cgutils.alloca_once_value(builder, builder.load(target, align=1, typ=kind))
    with _cgutils.for_range(builder, count, intp=_INT64) as loop:
        place = builder.gep(updates, [loop.index], inbounds=True, source_etype=kind)
        update = builder.load(place, align=1, typ=kind)
        builder.store(combine(builder, builder.load(item, typ=kind), update), item)
    result = builder.load(item, typ=kind)
    is_number = builder.not_(reduction.is_nan(builder, result))
    with builder.if_then(is_number):
        builder.store(result, target, align=1)
    return is_number


def _combine(builder: Builder, code: Any, base: Any, numbers: Any, updates: Any, count: Any) -> None:
    cases: dict[int, Callable[[], None]] = {
        number: partial(_copy, builder, COPIES[number], base, numbers, updates, count) for number in range(ITEM_COPIES)
    }
    for (name, dtype, _), number in REDUCTION_CODES.items():
        cases[number] = partial(_reduce, builder, reduction_of(name, dtype), base, numbers, updates, count)
    make_cases(builder, code, cases)


_combined: Final[Callable[[int, Address, Address, Address, int], None]] = intrinsic(
    types.none, (types.int64,) * 5, _combine
)


@inlined
def are_single_items(code: int, items: int) -> bool:
    """Whether a code's slices of so many items are single items of at most 8 bytes."""
    return code < ITEM_COPIES or (code > COPY_ROWS and items == 1)


@inlined
def can_be_set_aside(code: int) -> bool:
    """Whether to apply an update of this code to a spare item takes no longer than to leave it out."""
    return _SET_ASIDE >> code & 1 != 0


@inner
def combine_single_items(code: int, base: Address, numbers: Address, updates: Address, count: int) -> None:
    """Take `count` updates one after the other to the items at `base` whose numbers are at `numbers`.

    A code of rows does nothing.
    """
    _combined(code, base, numbers, updates, count)
