"""Memory by address, for compiled kernels: what Numba's own arrays cannot say.

Vector moves of a fixed width without alignment, stores past the caches, requests for memory ahead of its use, and a
scratch array on the stack. Addresses are int64; nothing here checks them.
"""

from __future__ import annotations

from typing import Any, Final

import numba.core.cgutils
import numba.extending
from llvmlite import ir
from numba import types

SCRATCH_ITEMS: Final = 768

# Numba's decorators and helpers are untyped, or typed as what they are before compilation.
_intrinsic: Any = numba.extending.intrinsic
_cgutils: Any = numba.core.cgutils

_INT64: Final = ir.IntType(64)
_BYTE: Final = ir.IntType(8)


def _place(builder: Any, base: Any, index: Any) -> Any:
    """Pointer to item `index` of the int64 at `base`."""
    return builder.gep(builder.inttoptr(base, _INT64.as_pointer()), [index], inbounds=True, source_etype=_INT64)


def stack_room(items: int) -> Any:
    """An intrinsic for the address of so many int64 on the stack. They are not cleared: unused ones cost nothing."""

    @_intrinsic
    def room(typing_context):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            with builder.goto_entry_block():
                place = builder.alloca(ir.ArrayType(_INT64, items))
            return builder.ptrtoint(place, _INT64)

        return types.int64(), generate

    return room


scratch = stack_room(SCRATCH_ITEMS)


@_intrinsic
def line(typing_context):  # type: ignore[no-untyped-def]
    """Address of 64 bytes on the stack, at a multiple of 64, with 64 bytes of room before them and after them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        room = _cgutils.alloca_once(builder, ir.ArrayType(_BYTE, 256))
        first = builder.add(builder.ptrtoint(room, _INT64), _INT64(64 + 63))
        return builder.and_(first, _INT64(-64))

    return types.int64(), generate


@_intrinsic
def get(typing_context, base, index):  # type: ignore[no-untyped-def]
    """The int64 at base + 8 * index."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_place(builder, *arguments), align=8)

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def get_constant(typing_context, base, index):  # type: ignore[no-untyped-def]
    """The same for memory that nothing writes while the function runs: the compiler may load ahead of stores."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        load = builder.load(_place(builder, *arguments), align=8)
        load.set_metadata("invariant.load", builder.module.add_metadata([]))
        return load

    return types.int64(types.int64, types.int64), generate


@_intrinsic
def put(typing_context, base, index, value):  # type: ignore[no-untyped-def]
    """Set the int64 at base + 8 * index."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _place(builder, *arguments[:2]), align=8)
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


@_intrinsic
def prefetch(typing_context, address):  # type: ignore[no-untyped-def]
    """Ask for the cache line at `address`; an address that is not mapped does no harm.

    It is asked into the second cache, which can wait for more lines at once than the first.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        flag = ir.IntType(32)
        pointer = builder.inttoptr(arguments[0], _BYTE.as_pointer())
        function = _cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [pointer.type, flag, flag, flag]),
            "llvm.prefetch.p0",
        )
        builder.call(function, [pointer, flag(0), flag(2), flag(1)])
        return context.get_dummy_value()

    return types.none(types.int64), generate


def _mover(width: int, aligned: bool, stream: bool):  # type: ignore[no-untyped-def]
    kind = ir.IntType(8 * width) if width <= 8 else ir.VectorType(_INT64, width // 8)

    @_intrinsic
    def mover(typing_context, target, source):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            to, frm = (builder.inttoptr(argument, kind.as_pointer()) for argument in arguments)
            value = builder.load(frm, align=1, typ=kind)
            store = builder.store(value, to, align=width if aligned else 1)
            if stream:
                store.set_metadata("nontemporal", builder.module.add_metadata([ir.IntType(32)(1)]))
            return context.get_dummy_value()

        return types.none(types.int64, types.int64), generate

    return mover


# Copy so many bytes from `source` to `target`, neither of which need be aligned: one load and one store.
move_1 = _mover(1, False, False)
move_2 = _mover(2, False, False)
move_4 = _mover(4, False, False)
move_8 = _mover(8, False, False)
move_16 = _mover(16, False, False)
move_32 = _mover(32, False, False)
move_64 = _mover(64, False, False)
# Copy 64 bytes to a target that is a multiple of 64, past the caches; `settle` before another thread may read them.
stream_64 = _mover(64, True, True)


@_intrinsic
def move(typing_context, target, source, size):  # type: ignore[no-untyped-def]
    """Copy `size` bytes by the C library."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        to, frm = (builder.inttoptr(argument, _BYTE.as_pointer()) for argument in arguments[:2])
        _cgutils.raw_memcpy(builder, to, frm, arguments[2], _INT64(1))
        return context.get_dummy_value()

    return types.none(types.int64, types.int64, types.int64), generate


@_intrinsic
def settle(typing_context):  # type: ignore[no-untyped-def]
    """Order what was streamed before all that follows."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), generate


@_intrinsic
def call(typing_context, function, first, second):  # type: ignore[no-untyped-def]
    """What the C function at that address gives for two int64, an int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(_INT64, [_INT64, _INT64])
        return builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), arguments[1:])

    return types.int64(types.int64, types.int64, types.int64), generate
