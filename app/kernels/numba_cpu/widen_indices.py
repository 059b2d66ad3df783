"""Indices of other types than int64, compiled by Numba: widened chunk by chunk on their way into `gather_part`.

A chunk is so small that it stays in the caches, and lies on the stack, so that a gather takes no memory for it however
many indices there are. `gather_part` lies behind an address: it takes the chunk for memory that nobody writes.
"""

from __future__ import annotations

from typing import Any, Final

import numba.extending
from llvmlite import ir
from numba import types

from app.kernels.numba_cpu.gather_chunk import (
    AXES,
    BATCHES,
    BLOCK,
    COMPONENTS,
    DATA,
    DEPTH,
    FLAGS,
    INDEX,
    OUTPUT,
    PART,
    SHARED,
    SIZE,
    START,
    STRIDE,
    TOTAL,
    TUPLES,
    WHOLE_BATCHES,
    WIDTH,
)
from app.kernels.numba_cpu.memory_intrinsics import call, get, put, scratch, stack_room

MAX_DEPTH: Final = 64
_CHUNK: Final = 1 << 11  # components, unless a block of tuples has more
_chunk = stack_room(BLOCK * MAX_DEPTH)
_HIGHEST: Final = (1 << 63) - 1

_intrinsic: Any = numba.extending.intrinsic
_jitable: Any = numba.extending.register_jitable
_INT64: Final = ir.IntType(64)


def _reader(bits: int, signed: bool) -> Any:
    kind = ir.IntType(bits)

    @_intrinsic
    def reader(typing_context, base, index):  # type: ignore[no-untyped-def]
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            base = builder.inttoptr(arguments[0], kind.as_pointer())
            value = builder.load(builder.gep(base, [arguments[1]], inbounds=True, source_etype=kind), typ=kind)
            if bits == 64:
                return value
            return builder.sext(value, _INT64) if signed else builder.zext(value, _INT64)

        return types.int64(types.int64, types.int64), generate

    return reader


# Item `index` of those at `base`, as an int64.
_int8 = _reader(8, True)
_int16 = _reader(16, True)
_int32 = _reader(32, True)
_uint8 = _reader(8, False)
_uint16 = _reader(16, False)
_uint32 = _reader(32, False)
_uint64 = _reader(64, False)


@_jitable
def _widen(kind, source, first, count, target):  # type: ignore[no-untyped-def]
    """Write components [first, first + count) of those at `source` to `target`; `kind` is as of `index_type`."""
    if kind == -1:
        for at in range(count):
            put(target, at, _uint8(source, first + at))
    elif kind == 1:
        for at in range(count):
            put(target, at, _int8(source, first + at))
    elif kind == -2:
        for at in range(count):
            put(target, at, _uint16(source, first + at))
    elif kind == 2:
        for at in range(count):
            put(target, at, _int16(source, first + at))
    elif kind == -4:
        for at in range(count):
            put(target, at, _uint32(source, first + at))
    elif kind == 4:
        for at in range(count):
            put(target, at, _int32(source, first + at))
    else:
        for at in range(count):
            value = _uint64(source, first + at)
            put(target, at, value if value >= 0 else _HIGHEST)  # which is out of bounds everywhere


def gather_narrow(note, number):  # type: ignore[no-untyped-def]
    """As `gather_part`, for a note whose INDEX says that its components are of another type than int64."""
    part, kind, source = get(note, PART), get(note, INDEX), get(note, COMPONENTS)
    depth, tuples, flags = get(note, DEPTH), get(note, TUPLES), get(note, FLAGS)
    batches = get(note, BATCHES)
    low = number * get(note, SIZE)
    high = min(low + get(note, SIZE), get(note, TOTAL))
    own = scratch()
    for at in (AXES, DEPTH, TUPLES, WIDTH, STRIDE):
        put(own, at, get(note, at))
    put(own, DATA, get(note, DATA))
    put(own, OUTPUT, get(note, OUTPUT))
    if flags & WHOLE_BATCHES != 0:
        batches = high - low
        put(own, DATA, get(note, DATA) + low * get(note, STRIDE))
        put(own, OUTPUT, get(note, OUTPUT) + low * tuples * get(note, WIDTH))
        low = 0
        high = tuples
    put(own, BATCHES, batches)
    put(own, FLAGS, flags & ~WHOLE_BATCHES)
    most = max(BLOCK, _CHUNK // max(depth, 1))  # tuples
    if flags & SHARED == 0 and 0 < tuples < BLOCK:
        most = most // tuples * tuples
    chunk = _chunk()
    while True:
        count = min(most, high - low)
        _widen(kind, source, low * depth, count * depth, chunk)
        put(own, COMPONENTS, chunk - 8 * low * depth)
        put(own, START, low)
        put(own, SIZE, count)
        put(own, TOTAL, low + count)
        bad = call(part, own, 0)
        if bad >= 0:
            return bad
        low += count
        if low >= high:
            return -1
