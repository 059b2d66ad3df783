"""Memory access by address for compiled kernels, beyond what Numba's arrays offer.

This module provides unaligned copies of fixed width, stores that bypass the caches, and prefetches. Addresses are int64
and are not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import numba.core.cgutils
from llvmlite import ir
from numba import types

from app.compilation.decorators import inlined
from app.compilation.intrinsics import Address, Builder, intrinsic, prefetch

Copy: TypeAlias = Callable[[Address, Address], None]
"""(target, source)"""

LINE: Final = 64
"""Bytes of a cache line on all processors for which the service is built (x86-64 and nearly all aarch64)."""

_cgutils: Any = numba.core.cgutils
_int64: Final = types.int64
_INT64: Final = ir.IntType(64)
_BYTE: Final = ir.IntType(8)


def item_pointer(builder: Builder, base: Any, index: Any) -> Any:
    """Return a pointer to item `index` of the int64 array at `base`."""
    return builder.gep(builder.inttoptr(base, _INT64.as_pointer()), [index], inbounds=True, source_etype=_INT64)


def _load_item(builder: Builder, base: Any, index: Any) -> Any:
    return builder.load(item_pointer(builder, base, index), align=8)


def _load_invariant(builder: Builder, base: Any, index: Any) -> Any:
    load = _load_item(builder, base, index)
    load.set_metadata("invariant.load", builder.module.add_metadata([]))
    return load


def _store_item(builder: Builder, base: Any, index: Any, value: Any) -> None:
    builder.store(value, item_pointer(builder, base, index), align=8)


def _aligned_line(builder: Builder) -> Any:
    room = _cgutils.alloca_once(builder, ir.ArrayType(_BYTE, 4 * LINE))
    first = builder.add(builder.ptrtoint(room, _INT64), _INT64(2 * LINE - 1))
    return builder.and_(first, _INT64(-LINE))


def copy_of(width: int, *, nontemporal: bool = False) -> Copy:
    """Build an intrinsic that copies `width` bytes, a power of two up to 64, with one load and one store.

    A nontemporal store bypasses the caches; its target must be aligned to the width. Other addresses need no alignment.
    """
    kind = ir.IntType(8 * width) if width <= 8 else ir.VectorType(_INT64, width // 8)

    def build(builder: Builder, target: Any, source: Any) -> None:
        value = builder.load(builder.inttoptr(source, kind.as_pointer()), align=1, typ=kind)
        pointer = builder.inttoptr(target, kind.as_pointer())
        store = builder.store(value, pointer, align=width if nontemporal else 1)
        if nontemporal:
            store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))

    copy: Copy = intrinsic(types.none, (_int64, _int64), build)
    return copy


def _memcpy(builder: Builder, target: Any, source: Any, size: Any) -> None:
    to, frm = (builder.inttoptr(address, _BYTE.as_pointer()) for address in (target, source))
    _cgutils.raw_memcpy(builder, to, frm, size, _INT64(1))


def _clear(builder: Builder, target: Any, size: Any) -> None:
    _cgutils.memset(builder, builder.inttoptr(target, _BYTE.as_pointer()), size, 0)


def _call_address(builder: Builder, function: Any, first: Any, second: Any) -> Any:
    kind = ir.FunctionType(_INT64, [_INT64, _INT64])
    return builder.call(builder.inttoptr(function, kind.as_pointer()), [first, second])


def _add_atomically(builder: Builder, address: Any, value: Any) -> None:
    builder.atomic_rmw("add", item_pointer(builder, address, _INT64(0)), value, "monotonic")


def _fence(builder: Builder) -> None:
    builder.fence("seq_cst")


load_item: Final[Callable[[Address, int], int]] = intrinsic(_int64, (_int64, _int64), _load_item)
"""Return the int64 at base + 8 * index."""
load_invariant: Final[Callable[[Address, int], int]] = intrinsic(_int64, (_int64, _int64), _load_invariant)
"""Return the int64 at base + 8 * index. It must not change while the function runs, because it may be loaded early."""
store_item: Final[Callable[[Address, int, int], None]] = intrinsic(types.none, (_int64, _int64, _int64), _store_item)
"""Set the int64 at base + 8 * index."""
aligned_line: Final[Callable[[], Address]] = intrinsic(_int64, (), _aligned_line)
"""Return the address of a cache line on the stack, with a spare line before it and one after it."""
copy_1: Final = copy_of(1)
copy_2: Final = copy_of(2)
copy_4: Final = copy_of(4)
copy_8: Final = copy_of(8)
copy_16: Final = copy_of(16)
copy_32: Final = copy_of(32)
copy_64: Final = copy_of(64)
copy_line_nontemporal: Final = copy_of(LINE, nontemporal=True)
"""Copy 64 bytes, bypassing the caches. The target must be 64-byte aligned.

Call `fence` before another thread reads it.
"""
memcpy: Final[Callable[[Address, Address, int], None]] = intrinsic(types.none, (_int64, _int64, _int64), _memcpy)
"""(target, source, size): copy `size` bytes with the C library."""
clear: Final[Callable[[Address, int], None]] = intrinsic(types.none, (_int64, _int64), _clear)
"""(target, size): set `size` bytes to 0 with the C library."""
add_atomically: Final[Callable[[Address, int], None]] = intrinsic(types.none, (_int64, _int64), _add_atomically)
"""Add to the int64 at an address, atomically (relaxed order)."""
fence: Final[Callable[[], None]] = intrinsic(types.none, (), _fence)
"""Order nontemporal stores before everything that follows."""
call_address: Final[Callable[[Address, int, int], int]] = intrinsic(_int64, (_int64,) * 3, _call_address)
"""Call the C function at an address with two int64 arguments. Returns its int64 result."""


@inlined
def prefetch_bytes(address: Address, count: int) -> None:
    """Prefetch the cache lines of `count` bytes (at least one) at an address."""
    for at in range(0, count, LINE):
        prefetch(address + at)
    prefetch(address + count - 1)
