"""Convert indices of any integer type to int64 block by block, so that kernels need no memory for a full copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types

from app.compilation.decorators import inlined
from app.compilation.intrinsics import Address, Builder, intrinsic
from app.kernels.numba_cpu.memory_intrinsics import store_item

_HIGHEST: Final = (1 << 63) - 1
_INT64: Final = ir.IntType(64)


def widen(bits: int, *, signed: bool) -> Callable[[Address, int, int, Address], None]:
    """Build a loop that writes items [first, first + count) of `source`, integers of `bits` bits, as int64.

    A uint64 above 2**63 - 1 becomes 2**63 - 1, which is always out of bounds.
    """
    kind = ir.IntType(bits)
    keep = bits < 64 or signed

    def build(builder: Builder, base: Any, index: Any) -> Any:
        pointer = builder.inttoptr(base, kind.as_pointer())
        value = builder.load(builder.gep(pointer, [index], inbounds=True, source_etype=kind), typ=kind)
        if bits == 64:
            return value
        return builder.sext(value, _INT64) if signed else builder.zext(value, _INT64)

    load: Callable[[Address, int], int] = intrinsic(types.int64, (types.int64, types.int64), build)

    @inlined
    def loop(source: Address, first: int, count: int, target: Address) -> None:
        for at in range(count):
            value = load(source, first + at)
            store_item(target, at, value if keep or value >= 0 else _HIGHEST)

    return loop


_widen_int8: Final = widen(8, signed=True)
_widen_int16: Final = widen(16, signed=True)
_widen_int32: Final = widen(32, signed=True)
_copy_int64: Final = widen(64, signed=True)
_widen_uint8: Final = widen(8, signed=False)
_widen_uint16: Final = widen(16, signed=False)
_widen_uint32: Final = widen(32, signed=False)
_widen_uint64: Final = widen(64, signed=False)


@inlined
def widen_components(kind: int, source: Address, first: int, count: int, target: Address) -> None:
    """Run the loop for the index type `kind` (see `array_header.index_type`)."""
    if kind == -1:
        _widen_uint8(source, first, count, target)
    elif kind == 1:
        _widen_int8(source, first, count, target)
    elif kind == -2:
        _widen_uint16(source, first, count, target)
    elif kind == 2:
        _widen_int16(source, first, count, target)
    elif kind == -4:
        _widen_uint32(source, first, count, target)
    elif kind == 4:
        _widen_int32(source, first, count, target)
    elif kind == 8:
        _copy_int64(source, first, count, target)
    else:
        _widen_uint64(source, first, count, target)
