"""What a scatter does with the single items of a block: each update replaces its target, or is reduced into it.

As `combine_slices.py`, but a target is the number of an item of the output, and the updates lie one behind the other:
6.2 ns each in the loops for slices, and 0.6 in these (EPYC, float32, add).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

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

ALL_NUMBERS: Final = -1
"""The greatest number, taken as unsigned."""
_LANES: Final = 4
"""Items whose numbers are compared at a time: 1,000,000 into 1,000 took 437 µs so, and 529 one by one (in C, float32,
add)."""

_ACCUMULATORS: Final = 8
"""Least or greatest items that are found side by side of updates for one place, since each waits for the comparison
before it: 1,000,000 float32 took 1,155 µs with one and take 650 with these (Intel Xeon)."""
SPARE_ITEMS: Final = 16
"""Updates that are for other threads go to so many items in turn: one alone would have each wait for the one before."""

_NOT_NARROW: Final = {key: code for key, code in REDUCTION_CODES.items() if code not in NARROW_CODES}
_SET_ASIDE: Final = (1 << ITEM_COPIES) - 1 | sum(
    1 << code for code in {code for (reduction, _, _), code in _NOT_NARROW.items() if reduction != "mul"}
)
"""A bit for each code whose updates may go to a spare item: floats of 16 bits take several times as long as others, and
products of whatever numbers come may be subnormal, for which some processors need a hundred times as long."""
_OWN: Final = (1 << ITEM_COPIES) - 1 | sum(
    1 << code for code in {code for (reduction, _, _), code in _NOT_NARROW.items() if reduction == "add"}
)
"""A bit for each code of `combine_own_items`. Of a minimum or maximum it takes as long as without it, and of 8 bits
longer, for LLVM makes a branch of each choice there."""


class _Call(NamedTuple):
    """The arguments of `combine_single_items` behind the code."""

    base: Any
    numbers: Any
    updates: Any
    count: Any
    last: Any
    begin: Any = None
    span: Any = None
    spare: Any = None


def _number(builder: Builder, numbers: Any, index: Any) -> Any:
    return builder.load(item_pointer(builder, numbers, index), align=8, typ=_INT64)


def _for_each_item(
    builder: Builder, call: _Call, kind: Any, lanes: int, body: Callable[[Any, Any], None], done: Any
) -> None:
    """Call `body` with the pointers to a target and its update, one after the other, up to the first number that is
    above the last one: `done` gets how many came before it.

    The numbers of so many `lanes` are read, and compared, before the first of their targets: each is read once, for
    memory that somebody else writes meanwhile may hold another one the next time.
    """
    items, source = (builder.inttoptr(address, kind.as_pointer()) for address in (call.base, call.updates))
    end = builder.append_basic_block("applied")
    for width in (lanes, 1) if lanes > 1 else (1,):
        head, check, apply, behind = (
            builder.append_basic_block(f"{name}_{width}") for name in ("head", "check", "apply", "behind")
        )
        builder.branch(head)
        builder.position_at_end(head)
        first = builder.load(done, typ=_INT64)
        upto = builder.add(first, _INT64(width))
        builder.cbranch(builder.icmp_signed("<=", upto, call.count), check, behind)
        builder.position_at_end(check)
        places = [builder.add(first, _INT64(lane)) for lane in range(width)]
        numbers = [_number(builder, call.numbers, place) for place in places]
        bad = _BIT(0)
        for number in numbers:
            bad = builder.or_(bad, builder.icmp_unsigned(">", number, call.last))
        builder.cbranch(bad, behind if width > 1 else end, apply)
        builder.position_at_end(apply)
        if call.span is not None:
            spare = builder.add(call.spare, builder.and_(first, _INT64(SPARE_ITEMS - width)))
            numbers = [
                builder.select(
                    builder.icmp_unsigned("<", builder.sub(number, call.begin), call.span),
                    number,
                    builder.add(spare, _INT64(lane)),
                )
                for lane, number in enumerate(numbers)
            ]
        for place, number in zip(places, numbers, strict=True):
            # Not `inbounds`: the number of a spare item leads out of the output.
            target = builder.gep(items, [number], source_etype=kind)
            body(target, builder.gep(source, [place], inbounds=True, source_etype=kind))
        builder.store(upto, done)
        builder.branch(head)
        builder.position_at_end(behind)
    builder.branch(end)
    builder.position_at_end(end)


def _copy(builder: Builder, width: int, call: _Call, done: Any) -> None:
    kind = ir.IntType(8 * width)

    def copy(target: Any, update: Any) -> None:
        builder.store(builder.load(update, align=1, typ=kind), target, align=1)

    _for_each_item(builder, call, kind, _LANES, copy, done)


def _reduce(builder: Builder, reduction: Reduction, lanes: int, call: _Call, done: Any) -> None:
    kind = reduction.kind
    source = builder.inttoptr(call.updates, kind.as_pointer())

    def loop(combine: Combine) -> None:
        is_one_place, number = _is_one_place(builder, call)
        with builder.if_then(is_one_place):
            is_done = _reduce_into_one(builder, reduction, combine, call, number)
            builder.store(builder.select(is_done, call.count, _INT64(0)), done)
        with builder.if_then(builder.icmp_unsigned("!=", builder.load(done, typ=_INT64), call.count)):
            _for_each_item(builder, call, kind, lanes, partial(combine_items, builder, kind, combine), done)

    choose_combine(builder, reduction, source, call.count, loop)


def _is_one_place(builder: Builder, call: _Call) -> tuple[Any, Any]:
    """Whether there are several targets, all of them the same and not above the last one; its number."""
    found = _cgutils.alloca_once_value(builder, _BIT(0))
    number = _cgutils.alloca_once_value(builder, _INT64(0))
    with builder.if_then(builder.icmp_signed(">", call.count, _INT64(1))):
        first = _number(builder, call.numbers, _INT64(0))
        builder.store(first, number)
        last = _number(builder, call.numbers, builder.sub(call.count, _INT64(1)))
        same = builder.icmp_unsigned("==", first, last)
        with builder.if_then(builder.and_(same, builder.icmp_unsigned("<=", first, call.last))):
            others = _cgutils.alloca_once_value(builder, _INT64(0))
            with _cgutils.for_range(builder, call.count, intp=_INT64) as loop:
                different = builder.xor(_number(builder, call.numbers, loop.index), first)
                builder.store(builder.or_(builder.load(others, typ=_INT64), different), others)
            builder.store(builder.icmp_unsigned("==", builder.load(others, typ=_INT64), _INT64(0)), found)
    return builder.load(found, typ=_BIT), builder.load(number, typ=_INT64)


def _reduce_into_one(builder: Builder, reduction: Reduction, combine: Combine, call: _Call, number: Any) -> Any:
    """The updates into the one target, which stays in a register meanwhile: in memory each would wait for the store of
    the one before. One after the other, or where the order makes no difference, eight side by side.

    Whether it is done: not where the result is a NaN, of which the other loop might make another one, so that its bits
    would depend on what lies in a block.
    """
    kind = reduction.kind
    items, updates = (builder.inttoptr(address, kind.as_pointer()) for address in (call.base, call.updates))
    target = builder.gep(items, [number], source_etype=kind)
    item = _cgutils.alloca_once_value(builder, builder.load(target, align=1, typ=kind))

    def take(index: Any, accumulator: Any) -> None:
        place = builder.gep(updates, [index], inbounds=True, source_etype=kind)
        update = builder.load(place, align=1, typ=kind)
        builder.store(combine(builder, builder.load(accumulator, typ=kind), update), accumulator)

    start: Any = _INT64(0)
    if combine is reduction.compare:  # of these the order makes no difference, since none is a NaN or -0
        first = builder.load(item, typ=kind)
        accumulators = [item, *(_cgutils.alloca_once_value(builder, first) for _ in range(_ACCUMULATORS - 1))]
        rounds = builder.udiv(call.count, _INT64(_ACCUMULATORS))
        with _cgutils.for_range(builder, rounds, intp=_INT64) as loop:
            begin = builder.mul(loop.index, _INT64(_ACCUMULATORS))
            for lane, accumulator in enumerate(accumulators):
                take(builder.add(begin, _INT64(lane)), accumulator)
        for accumulator in accumulators[1:]:
            both = builder.load(item, typ=kind), builder.load(accumulator, typ=kind)
            builder.store(reduction.combine(builder, *both), item)
        start = builder.mul(rounds, _INT64(_ACCUMULATORS))
    with _cgutils.for_range(builder, call.count, start=start, intp=_INT64) as loop:
        take(loop.index, item)
    result = builder.load(item, typ=kind)
    is_number = builder.not_(reduction.is_nan(builder, result))
    with builder.if_then(is_number):
        builder.store(result, target, align=1)
    return is_number


def _combine(builder: Builder, code: Any, *values: Any) -> Any:
    call = _Call(*values)
    done = _cgutils.alloca_once_value(builder, _INT64(0))
    cases: dict[int, Callable[[], None]] = {
        number: partial(_copy, builder, COPIES[number], call, done) for number in range(ITEM_COPIES)
    }
    for (name, dtype, _), number in REDUCTION_CODES.items():
        lanes = 1 if number in NARROW_CODES else _LANES
        cases[number] = partial(_reduce, builder, reduction_of(name, dtype), lanes, call, done)
    make_cases(builder, code, cases)
    return builder.load(done, typ=_INT64)


def _combine_own(builder: Builder, code: Any, *values: Any) -> Any:
    call = _Call(*values)
    done = _cgutils.alloca_once_value(builder, _INT64(0))
    cases: dict[int, Callable[[], None]] = {
        number: partial(_copy, builder, COPIES[number], call, done) for number in range(ITEM_COPIES)
    }
    for (name, dtype, _), number in REDUCTION_CODES.items():
        if _OWN >> number & 1:
            kind, combine = reduction_of(name, dtype)[:2]
            body = partial(combine_items, builder, kind, combine)
            cases[number] = partial(_for_each_item, builder, call, kind, _LANES, body, done)
    make_cases(builder, code, cases)
    return builder.load(done, typ=_INT64)


_combined: Final[Callable[[int, Address, Address, Address, int, int], int]] = intrinsic(
    types.int64, (types.int64,) * 6, _combine
)
_combined_own: Final[Callable[[int, Address, Address, Address, int, int, int, int, int], int]] = intrinsic(
    types.int64, (types.int64,) * 9, _combine_own
)


@inlined
def are_single_items(code: int, items: int) -> bool:
    """Whether a code's slices of so many items are single items of at most 8 bytes."""
    return code < ITEM_COPIES or (code > COPY_ROWS and items == 1)


@inlined
def can_be_set_aside(code: int) -> bool:
    """Whether to apply an update of this code to a spare item takes no longer than to leave it out."""
    return _SET_ASIDE >> code & 1 != 0


@inlined
def has_own_items(code: int) -> bool:
    """Whether `combine_own_items` has a loop for this code."""
    return _OWN >> code & 1 != 0


@inner
def combine_single_items(code: int, base: Address, numbers: Address, updates: Address, count: int, last: int) -> int:
    """Take `count` updates one after the other to the items at `base` whose numbers are at `numbers`, up to the first
    number that is above `last`, both taken as unsigned: how many came before it.

    Updates behind it are as they were. A code of rows does nothing.
    """
    return _combined(code, base, numbers, updates, count, last)


@inner
def combine_own_items(
    code: int,
    base: Address,
    numbers: Address,
    updates: Address,
    count: int,
    last: int,
    begin: int,
    span: int,
    spare: int,
) -> int:
    """`combine_single_items` for those whose numbers are in [begin, begin + span). The others go to the SPARE_ITEMS
    items from number `spare` on. A code without `has_own_items` does nothing.
    """
    return _combined_own(code, base, numbers, updates, count, last, begin, span, spare)
