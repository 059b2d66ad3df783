"""What a scatter does with the slices of a block: each update replaces its target, or is reduced into it.

The loops are written in LLVM's instructions, one for each reduction and type (`reductions.py`), behind one switch: so
they share one function, and Numba has nothing to infer of them. Single items have loops of their own
(`combine_single_items.py`).
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
    REDUCTION_CODES,
    Combine,
    Reduction,
    choose_combine,
    combine_items,
    for_each_vector,
    make_cases,
    reduction_of,
    vector_at,
)
from app.llvm_intrinsics import Address, Builder, inner, intrinsic

_cgutils: Any = numba.core.cgutils
_INT64: Final = ir.IntType(64)
_BYTE: Final = ir.IntType(8)
_SHORT_ROW: Final = 1 << 10
"""Bytes of rows that are copied by a loop rather than by the C library."""


def _for_each_slice(builder: Builder, count: Any, targets: Any, sources: Any, kind: Any, body: Any) -> None:
    with _cgutils.for_range(builder, count, intp=_INT64) as loop:
        target, source = (
            builder.inttoptr(
                builder.load(item_pointer(builder, base, loop.index), align=8, typ=_INT64), kind.as_pointer()
            )
            for base in (targets, sources)
        )
        body(target, source)


def _reduce(builder: Builder, reduction: Reduction, targets: Any, sources: Any, count: Any, items: Any) -> None:
    kind = reduction.kind

    def reduce_slice(target: Any, source: Any) -> None:
        def loop(combine: Combine) -> None:
            def reduce_vector(index: Any, lanes: int) -> None:
                to, frm = (vector_at(builder, row, index, kind, lanes) for row in (target, source))
                combine_items(builder, kind, combine, to, frm, lanes)

            for_each_vector(builder, items, kind, reduce_vector)

        choose_combine(builder, reduction, source, items, loop)

    _for_each_slice(builder, count, targets, sources, kind, reduce_slice)


def _copy_row(builder: Builder, size: Any, target: Any, source: Any) -> None:
    def copy(index: Any, lanes: int) -> None:
        kind = ir.VectorType(_BYTE, lanes) if lanes > 1 else _BYTE
        value = builder.load(vector_at(builder, source, index, _BYTE, lanes), align=1, typ=kind)
        builder.store(value, vector_at(builder, target, index, _BYTE, lanes), align=1)

    for_each_vector(builder, size, _BYTE, copy)


def _copy_slices(builder: Builder, width: int, targets: Any, sources: Any, count: Any) -> None:
    kind = ir.VectorType(_INT64, width // 8)

    def copy(target: Any, source: Any) -> None:
        builder.store(builder.load(source, align=1, typ=kind), target, align=1)

    _for_each_slice(builder, count, targets, sources, kind, copy)


def _copy_rows(builder: Builder, targets: Any, sources: Any, count: Any, size: Any) -> None:
    with builder.if_else(builder.icmp_signed("<=", size, _INT64(_SHORT_ROW))) as (short, long):
        with short:
            _for_each_slice(builder, count, targets, sources, _BYTE, partial(_copy_row, builder, size))
        with long:
            _for_each_slice(
                builder, count, targets, sources, _BYTE,
                lambda target, source: _cgutils.raw_memcpy(builder, target, source, size, _INT64(1)),
            )  # fmt: skip


def _combine(builder: Builder, code: Any, targets: Any, sources: Any, count: Any, items: Any) -> None:
    cases: dict[int, Callable[[], None]] = {
        number: partial(_copy_slices, builder, COPIES[number], targets, sources, count)
        for number in range(ITEM_COPIES, COPY_ROWS)
    }
    cases[COPY_ROWS] = partial(_copy_rows, builder, targets, sources, count, items)
    for (name, dtype, _), number in REDUCTION_CODES.items():
        cases[number] = partial(_reduce, builder, reduction_of(name, dtype), targets, sources, count, items)
    make_cases(builder, code, cases)


_combined: Final[Callable[[int, Address, Address, int, int], None]] = intrinsic(
    types.none, (types.int64,) * 5, _combine
)


@inner
def combine_slices(code: int, targets: Address, sources: Address, count: int, items: int) -> None:
    """Take `count` updates, whose addresses are at `sources`, one after the other to the addresses at `targets`.

    A slice is `items` items of the code's type, or bytes where it copies rows. A code of single items does nothing.
    """
    _combined(code, targets, sources, count, items)
