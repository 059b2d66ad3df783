"""Indices of other types than int64, compiled by Numba: widened piece by piece on their way into `gather_chunk`.

Tuples that several batches use, but not all, are repeated on the same way: there each batch has its own.

A piece is so small that it stays in the caches, and lies on the stack, so that a gather takes no memory for it however
many indices there are. `gather_chunk` is called by its address: it takes the piece for memory that nobody writes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from llvmlite import ir
from numba import types

from app.kernels.numba_cpu.gather_job import (
    AXES,
    BATCHES,
    BATCHES_PER_SET,
    BLOCK,
    BROADCAST_INDICES,
    CHUNK_SIZE,
    COMPONENTS,
    DATA,
    DEPTH,
    FLAGS,
    GATHER_CHUNK,
    INDEX_TYPE,
    OUTPUT,
    REPEATED_INT64,
    START,
    STRIDE,
    TOTAL,
    TUPLES,
    WHOLE_BATCHES,
    WIDTH,
)
from app.kernels.numba_cpu.memory_intrinsics import call_address, load_item, stack_scratch, store_item
from app.llvm_intrinsics import Address, Builder, inlined, intrinsic, stack_words

MAX_DEPTH: Final = 64
"""Components of a tuple: the most axes that NumPy's arrays have (NPY_MAXDIMS of NumPy 2)."""
_PIECE: Final = 1 << 11
"""Components of a piece, unless a block of tuples has more: 16 KiB, half a first cache of 32 KiB."""
_HIGHEST: Final = (1 << 63) - 1
_INT64: Final = ir.IntType(64)

_stack_piece: Final = stack_words(BLOCK * MAX_DEPTH)


def widen(bits: int, *, signed: bool) -> Callable[[Address, int, int, Address], None]:
    """A loop that writes items [first, first + count) of those at `source`, integers of so many bits, as int64.

    A uint64 above 2**63 - 1 becomes that, which is out of bounds everywhere.
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
    """The loop for the index type `kind` (see `ndarray_abi.index_type`), or REPEATED_INT64."""
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
    elif kind == REPEATED_INT64:
        _copy_int64(source, first, count, target)
    else:
        _widen_uint64(source, first, count, target)


def gather_narrow_chunk(job: Address, number: int) -> int:
    """As `gather_chunk`, for a job whose INDEX_TYPE is another one than int64.

    With BATCHES_PER_SET the tuples of a set are handed on once for each of its batches; the first bad component is the
    one in the indices as they are.
    """
    kind, source, depth = load_item(job, INDEX_TYPE), load_item(job, COMPONENTS), load_item(job, DEPTH)
    batches, tuples, flags = load_item(job, BATCHES), load_item(job, TUPLES), load_item(job, FLAGS)
    low = number * load_item(job, CHUNK_SIZE)
    high = min(low + load_item(job, CHUNK_SIZE), load_item(job, TOTAL))
    per_set = load_item(job, BATCHES_PER_SET)
    own = stack_scratch()  # a job for each piece
    for field in (AXES, DEPTH, TUPLES, WIDTH, STRIDE):
        store_item(own, field, load_item(job, field))
    store_item(own, DATA, load_item(job, DATA))
    store_item(own, OUTPUT, load_item(job, OUTPUT))
    if flags & WHOLE_BATCHES != 0:
        batches = high - low
        store_item(own, DATA, load_item(job, DATA) + low * load_item(job, STRIDE))
        store_item(own, OUTPUT, load_item(job, OUTPUT) + low * tuples * load_item(job, WIDTH))
        low = 0
        high = tuples
    store_item(own, BATCHES, batches)
    store_item(own, FLAGS, flags & ~WHOLE_BATCHES)
    most = max(BLOCK, _PIECE // max(depth, 1))  # tuples
    if flags & BROADCAST_INDICES == 0 and 0 < tuples < BLOCK:
        most = most // tuples * tuples
    piece = _stack_piece()
    stretch = high - low  # tuples that lie one behind the other, to be widened in one go
    first = low  # the first of those in hand
    passed = 0  # how many of them are done
    batch = 0  # which batch of its set has them
    if per_set > 0 and low < high:
        stretch = tuples
        number_of_batch = low // tuples
        passed = low - number_of_batch * tuples
        first = number_of_batch // per_set * tuples
        batch = number_of_batch - number_of_batch // per_set * per_set
    while True:
        count = min(most, high - low)
        filled = 0
        while filled < count:
            run = min(stretch - passed, count - filled)
            widen_components(kind, source, (first + passed) * depth, run * depth, piece + 8 * filled * depth)
            filled += run
            passed += run
            if per_set > 0 and passed == stretch:
                passed = 0
                batch += 1
                if batch == per_set:
                    batch = 0
                    first += stretch
        store_item(own, COMPONENTS, piece - 8 * low * depth)
        store_item(own, START, low)
        store_item(own, CHUNK_SIZE, count)
        store_item(own, TOTAL, low + count)
        bad = call_address(load_item(job, GATHER_CHUNK), own, 0)
        if bad >= 0:
            if per_set > 0:
                tuple_ = bad // depth
                of_batch = tuple_ // tuples
                bad -= (of_batch - of_batch // per_set) * tuples * depth
            return bad
        low += count
        if low >= high:
            return -1
