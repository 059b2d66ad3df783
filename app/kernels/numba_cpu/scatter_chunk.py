"""A chunk of a scatter, compiled by Numba: the copy of its stretch of data, and the updates whose targets lie there.

It goes over the indices in blocks: it checks a block and writes the addresses of its targets, keeps those that are its
own with the addresses of their updates, and applies these (`combine_slices`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.kernels.numba_cpu.combine_slices import are_items, combine_slices
from app.kernels.numba_cpu.element_places import next_row, write_addresses
from app.kernels.numba_cpu.gather_job import (
    AXES,
    BATCHES,
    BLOCK,
    CHUNK_SIZE,
    COMPONENTS,
    DATA,
    DEPTH,
    FLAGS,
    NOT_AHEAD,
    OUTPUT,
    START,
    STRIDE,
    TOTAL,
    TUPLES,
    WIDTH,
    WRAP_NEGATIVE,
)
from app.kernels.numba_cpu.memory_intrinsics import (
    Copy,
    copy_1,
    copy_2,
    copy_4,
    copy_8,
    load_item,
    memcpy,
    prefetch,
    stack_scratch,
    store_item,
)
from app.kernels.numba_cpu.widen_indices import MAX_DEPTH, widen_components
from app.kernels.numba_cpu.write_offsets import first_bad_component, write_block_offsets
from app.llvm_intrinsics import Address, inlined, inner, stack_words, ult

# Fields of the job that say something else here than in a gather. TOTAL and CHUNK_SIZE count units of the output,
# STRIDE is the bytes of one; WIDTH is the bytes of an update; START is the code for `combine_slices`.
UPDATES: Final = BATCHES
"""The address of the updates."""
# AXES has the address of DEPTH sizes, then the items of a slice and those that `combine_slices` counts; of
# ScatterElements the sizes of indices, as many steps in items of the output, the size of the axis and its step.

# What FLAGS is made of, beside what a gather has.
ELEMENTS: Final = 32
"""ScatterElements."""
OUTER: Final = 64
"""Each unit has entries of its own: those of one place along the first axis of indices."""
CODE_BITS: Final = 8
"""Bits below the type of the entries."""
INDEX_KIND: Final = 64
"""Added to that type (`ndarray_abi.index_type`), which may be negative."""

_entries_scratch: Final = stack_words(BLOCK + MAX_DEPTH)


def scatter_chunk(job: Address, number: int) -> int:
    """Chunk `number` of a job: its first bad component, or -1."""
    low = number * load_item(job, CHUNK_SIZE)
    high = min(low + load_item(job, CHUNK_SIZE), load_item(job, TOTAL))
    begin, end = low * load_item(job, STRIDE), high * load_item(job, STRIDE)
    if end > begin:
        memcpy(load_item(job, OUTPUT) + begin, load_item(job, DATA) + begin, end - begin)
    if load_item(job, FLAGS) & ELEMENTS != 0:
        return _scatter_elements(job, low, high)
    return _scatter_nd(job, low, high)


@inner
def _scatter_nd(job: Address, low: int, high: int) -> int:
    """Apply the updates of tuples that name slices [low, high)."""
    target, components, axes = load_item(job, OUTPUT), load_item(job, COMPONENTS), load_item(job, AXES)
    depth, width, flags = load_item(job, DEPTH), load_item(job, WIDTH), load_item(job, FLAGS)
    tuples, slices = load_item(job, TUPLES), load_item(job, TOTAL)
    wrap = flags & WRAP_NEGATIVE != 0
    targets = stack_scratch()
    bases = targets + 16 * BLOCK
    for t in range(BLOCK):
        store_item(bases, t, 0)
    size_0 = load_item(axes, 0)
    size_1 = load_item(axes, 1) if depth > 1 else 1
    size_2 = load_item(axes, 2) if depth > 2 else 1
    size_3 = load_item(axes, 3) if depth > 3 else 1
    size_4 = load_item(axes, 4) if depth > 4 else 1
    sizes = size_0, size_1, size_2, size_3, size_4
    lasts = size_0 - 1, size_1 - 1, size_2 - 1, size_3 - 1, size_4 - 1
    wraps = sizes if wrap else (0, 0, 0, 0, 0)
    step_3 = width * size_4
    step_2 = step_3 * size_3
    step_1 = step_2 * size_2
    steps = step_1 * size_1, step_1, step_2, step_3, width
    done = 0
    while done < tuples:
        count = min(BLOCK, tuples - done)
        first = done * depth
        signs = write_block_offsets(
            targets, bases, target, components, first, count, lasts, wraps, steps, depth, axes, wrap, slices * width
        )
        if signs < 0:
            bad = first_bad_component(components, first, count, depth, axes, wrap)
            if bad >= 0:
                return bad
        _apply(job, targets, done, count, target + low * width, target + high * width, load_item(axes, depth + 1))
        done += count
    return -1


@inner
def _scatter_elements(job: Address, low: int, high: int) -> int:
    """Apply the updates that name items of the units [low, high) of the output.

    The scratch memories have the addresses of the targets of a block, and of their updates; the entries of a block
    where they have to be widened, and the place along each axis of the entry that comes next.
    """
    target, components, axes = load_item(job, OUTPUT), load_item(job, COMPONENTS), load_item(job, AXES)
    depth, width, flags = load_item(job, DEPTH), load_item(job, WIDTH), load_item(job, FLAGS)
    unit = load_item(job, STRIDE)
    kind = (flags >> CODE_BITS) - INDEX_KIND
    axis_size, axis_step = load_item(axes, 2 * depth), load_item(axes, 2 * depth + 1) * width
    wrapped = axis_size if flags & WRAP_NEGATIVE != 0 else 0
    done, end = 0, load_item(job, TUPLES)
    begin, stop = target + low * unit, target + high * unit
    if flags & OUTER != 0:
        outer = load_item(axes, 0)
        inside = end // outer
        done, end = min(low, outer) * inside, min(high, outer) * inside
    if done >= end:
        return -1
    targets = stack_scratch()
    entries = _entries_scratch()
    places = entries + 8 * BLOCK
    last = depth - 1
    row, row_step = load_item(axes, last), load_item(axes, depth + last) * width
    origin = target  # of the item that an entry of 0 at the beginning of the row would name
    rest = done // row
    column = done - rest * row
    for back in range(last):
        axis = last - 1 - back
        size = load_item(axes, axis)
        place = rest % size
        rest //= size
        store_item(places, axis, place)
        origin += place * load_item(axes, depth + axis) * width
    while done < end:
        count = min(BLOCK, end - done)
        given, first = components, done
        if kind != 8:
            widen_components(kind, components, done, count, entries)
            given, first = entries, 0
        signs = 0
        filled = 0
        while filled < count:
            stretch = min(row - column, count - filled)
            signs |= write_addresses(
                targets + 8 * filled,
                origin + column * row_step,
                row_step,
                given + 8 * (first + filled),
                stretch,
                axis_size,
                wrapped,
                axis_step,
            )
            filled += stretch
            column += stretch
            if column == row:
                column = 0
                origin += next_row(axes, places, depth) * width
        if signs < 0:
            for t in range(count):
                entry = load_item(given, first + t)
                if entry >= axis_size or entry < -wrapped:
                    return done + t
        _apply(job, targets, done, count, begin, stop, 1)
        done += count
    return -1


@inner
def _apply(job: Address, targets: Address, first: int, count: int, begin: Address, end: Address, items: int) -> None:
    """Apply those of `count` updates, from number `first` on, whose targets lie in [begin, end), in their order."""
    width, code = load_item(job, WIDTH), load_item(job, START)
    update = load_item(job, UPDATES) + first * width
    sources = targets + 8 * BLOCK
    span = end - begin
    if load_item(job, FLAGS) & OUTER != 0 or span == load_item(job, TOTAL) * load_item(job, STRIDE):  # all lie there
        if are_items(code, items):
            sources = update
        else:
            for t in range(count):
                store_item(sources, t, update + t * width)
    elif are_items(code, items):
        count = _keep_items(targets, update, sources, count, width, begin, span)
    else:
        kept = 0
        for t in range(count):
            target = load_item(targets, t)
            store_item(targets, kept, target)
            store_item(sources, kept, update + t * width)
            if ult(target - begin, span):
                kept += 1
        count = kept
    if load_item(job, FLAGS) & NOT_AHEAD == 0:
        for t in range(count):
            prefetch(load_item(targets, t))
    combine_slices(code, targets, sources, count, items)


def _keeper(copy: Copy, width: int) -> Callable[[Address, Address, Address, int, Address, int], int]:
    """A loop that moves the targets in a span, and single updates of that width, to the front: how many there are."""

    @inlined
    def loop(targets: Address, update: Address, kept_updates: Address, count: int, begin: Address, span: int) -> int:
        kept = 0
        for t in range(count):
            target = load_item(targets, t)
            store_item(targets, kept, target)
            copy(kept_updates + width * kept, update + width * t)
            if ult(target - begin, span):
                kept += 1
        return kept

    return loop


_keep_1: Final = _keeper(copy_1, 1)
_keep_2: Final = _keeper(copy_2, 2)
_keep_4: Final = _keeper(copy_4, 4)
_keep_8: Final = _keeper(copy_8, 8)


@inner
def _keep_items(
    targets: Address, update: Address, kept_updates: Address, count: int, width: int, begin: Address, span: int
) -> int:
    """The loop of `_keeper` for 1, 2, 4 or 8 bytes."""
    if width == 1:
        return _keep_1(targets, update, kept_updates, count, begin, span)
    if width == 2:
        return _keep_2(targets, update, kept_updates, count, begin, span)
    if width == 4:
        return _keep_4(targets, update, kept_updates, count, begin, span)
    return _keep_8(targets, update, kept_updates, count, begin, span)
