"""The gradient of a gather of narrow slices, added where they belong as they come, without sorting tuples.

To sort a tuple takes longer than to add a few items. Each slice is added to the result in the order of the tuples, by
one thread, in float32 or float64, which are the types of the sums: so the bits are those of sorted tuples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from numba import types

from app.kernels.numba_cpu.combine_single_items import ALL_NUMBERS, combine_single_items
from app.kernels.numba_cpu.element_places import write_numbers
from app.kernels.numba_cpu.float_items import (
    load_f32,
    load_f64,
    store_f32,
    store_f64,
    store_sum_32,
    store_sum_64,
)
from app.kernels.numba_cpu.gather_job import BLOCK
from app.kernels.numba_cpu.memory_intrinsics import (
    LINE,
    load_item,
    prefetch,
    prefetch_to_write,
    stack_scratch,
    store_item,
)
from app.kernels.numba_cpu.reductions import REDUCTION_CODES
from app.kernels.numba_cpu.widen_indices import MAX_DEPTH, widen_components
from app.llvm_intrinsics import Address, inner, int64, stack_words

_ADD_32: Final = REDUCTION_CODES["add", "float32", 4]
_ADD_64: Final = REDUCTION_CODES["add", "float64", 8]
NARROW_BYTES: Final = LINE
"""The longest slices for which this is faster than to sort, on two threads."""
_float32 = cast(Callable[[float], float], types.float32)
_stack_block = stack_words(BLOCK * MAX_DEPTH)


@inner
def block_of_components(kind: int, components: Address, first: int, count: int, block: Address) -> Address:
    """Where components [first, first + count) are as int64: in their place, or in `block`."""
    if kind == 8:
        return components + 8 * first
    widen_components(kind, components, first, count, block)
    return block


@inner
def write_places(
    given: Address, count: int, depth: int, axes: Address, wrap: bool, before: int, places: Address
) -> int:
    """Write the place that each of `count` tuples names within batch `before`: the first bad component, or -1."""
    if depth == 1:
        size = load_item(axes, 0)
        if write_numbers(places, before * size, given, count, size, size if wrap else 0) >= 0:
            return -1
    for at in range(count):
        place = before
        for axis in range(depth):
            size = load_item(axes, axis)
            component = load_item(given, at * depth + axis)
            if wrap:
                component += (component >> 63) & size
            if component < 0 or component >= size:
                return at * depth + axis
            place = place * size + component
        store_item(places, at, place)
    return -1


@inner
def add_narrow_rows(
    kind: int,
    components: Address,
    batches: int,
    tuples: int,
    depth: int,
    axes: Address,
    wrap: bool,
    broadcast: bool,
    gradient: Address,
    result: Address,
    items: int,
    width: int,
    size: int,
    coefficient: float,
) -> int:
    """The whole gradient, of `items` items of `size` bytes, 4 or 8, which are zeros: the first bad component, or -1."""
    block, places = _stack_block(), stack_scratch()
    odd = False  # whether a sum is a NaN, as it stays from the first one on
    look_last = items <= batches * tuples * width  # sums are looked at faster in the order of the result
    step = width * size
    for batch in range(batches):
        done = 0
        while done < tuples:
            count = min(BLOCK, tuples - done)
            first = done if broadcast else batch * tuples + done
            given = block_of_components(kind, components, first * depth, count * depth, block)
            bad = write_places(given, count, depth, axes, wrap, batch, places)
            if bad >= 0:
                return first * depth + bad
            if look_last:
                for at in range(count):
                    prefetch(result + load_item(places, at) * step)
            else:  # most of the result is in no cache
                for at in range(count):
                    prefetch_to_write(result + load_item(places, at) * step)
            source = gradient + (batch * tuples + done) * step
            if width == 1:
                code = _ADD_64 if size == 8 else _ADD_32
                combine_single_items(code, result, places, source, count, int64(ALL_NUMBERS))
            elif size == 4:
                _add_32(result, source, places, count, width)
            else:
                _add_64(result, source, places, count, width)
            if not look_last:
                for at in range(count):
                    odd |= _has_nan(result + load_item(places, at) * step, width, size)
            done += count
    if odd or coefficient != 1.0 or (look_last and _has_nan(result, items, size)):
        finish_sums(result, items, size, coefficient)
    return -1


@inner
def _add_32(result: Address, source: Address, places: Address, count: int, width: int) -> None:
    for at in range(count):
        place = load_item(places, at) * width
        for column in range(width):
            total = load_f32(result, place + column) + load_f32(source, at * width + column)
            store_sum_32(result, place + column, total)


@inner
def _add_64(result: Address, source: Address, places: Address, count: int, width: int) -> None:
    for at in range(count):
        place = load_item(places, at) * width
        for column in range(width):
            total = load_f64(result, place + column) + load_f64(source, at * width + column)
            store_sum_64(result, place + column, total)


@inner
def _has_nan(sums: Address, count: int, size: int) -> bool:
    """Whether one of so many sums is a NaN."""
    odd = 0
    if size == 4:
        for at in range(count):
            odd |= load_f32(sums, at) != load_f32(sums, at)
    else:
        for at in range(count):
            odd |= load_f64(sums, at) != load_f64(sums, at)
    return odd != 0


@inner
def finish_sums(result: Address, items: int, size: int, coefficient: float) -> None:
    """Multiply all sums; a NaN becomes the one that results have."""
    if size == 4:
        factor = _float32(coefficient)
        for at in range(items):
            store_f32(result, at, load_f32(result, at) * factor)
    else:
        for at in range(items):
            store_f64(result, at, load_f64(result, at) * coefficient)
