"""The chunks of a gradient: for each place that tuples name, the slices of grad_output added up in their order.

Unsorted tuples are left to `add_unsorted_rows`. Of sorted ones, a unit of work is a stretch of rows of one batch, or
some columns of it. A row of the result is written once, by the one unit that it belongs to, and what is added to it is
added in the order of the tuples: so the bits are the same however the work is cut.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from numba import types

from app.kernels.numba_cpu.add_unsorted_rows import add_unsorted_rows
from app.kernels.numba_cpu.backward_job import (
    COEFFICIENT,
    COLUMN_BLOCKS,
    COUNT,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    GRADIENT,
    GROUPS,
    INTO_OWN_ZEROS,
    ITEM_SIZE,
    KIND,
    LOW_BITS,
    NONTEMPORAL,
    PAIRS,
    RESULT,
    ROW_BLOCKS,
    ROWS,
    SPARSE,
    STARTS,
    TUPLES,
    UNSORTED,
    WIDTH,
)
from app.kernels.numba_cpu.float_items import (
    Load,
    Store,
    load_bf16,
    load_f16,
    load_f32,
    load_f64,
    store_bf16,
    store_f16,
    store_f32,
    store_f64,
    store_sum_32,
    store_sum_64,
)
from app.kernels.numba_cpu.gather_job import CHUNK_SIZE, DATA, TOTAL
from app.kernels.numba_cpu.memory_intrinsics import (
    LINE,
    aligned_line,
    clear,
    copy_line_nontemporal,
    fence,
    load_item,
    prefetch,
    store_item,
)
from app.llvm_intrinsics import (
    Address,
    f64_from_bits,
    inlined,
    inner,
    load_u8,
    stack_words,
    store_u16,
    store_u32,
    store_u64,
)

_SUMS: Final = 1024
"""Columns that are added up at a time, 4 or 8 KiB: with 256, 20,000 rows of 1024 into 5,000 were read in four pieces
each, and took 6.8 ms instead of 5.7 (medians of three runs)."""
_ADD_WEIGHT: Final = 3
"""What it takes to add a slice, where to write a row of zeros takes 1."""
_READ_TUPLES: Final = 16
_READ_LINES: Final = 4
"""A byte of each cache line of so many slices is read before they are added, if each has so many lines at most: the
processor then waits for all of them at once. Of longer ones, each is asked for before the one before it is added.
Neither where one slice lies behind the other: the processor reads ahead by itself then, and faster."""
_LEAST_PAST_CACHES: Final = 1 << 12
"""Bytes, below which zeros are not worth a fence."""

_float32 = cast(Callable[[float], float], types.float32)
"""The float32 nearest to a float64, half to even."""
_stack_sums = stack_words(_SUMS + 1)


def adder(load: Load, load_sum: Load, store_sum: Store) -> Callable[[Address, Address, int], None]:
    """A loop that adds `count` items to sums."""

    @inlined
    def loop(sums: Address, source: Address, count: int) -> None:
        for at in range(count):
            store_sum(sums, at, load_sum(sums, at) + load(source, at))

    return loop


def finisher_32(store: Store) -> Callable[[Address, Address, int, float], None]:
    """A loop that writes float32 sums, times a coefficient, as items."""

    @inlined
    def loop(target: Address, sums: Address, count: int, coefficient: float) -> None:
        factor = _float32(coefficient)
        for at in range(count):
            store(target, at, load_f32(sums, at) * factor)

    return loop


@inlined
def _finish_f64(target: Address, sums: Address, count: int, coefficient: float) -> None:
    for at in range(count):
        store_f64(target, at, load_f64(sums, at) * coefficient)


_add_f16 = adder(load_f16, load_f32, store_sum_32)
_add_bf16 = adder(load_bf16, load_f32, store_sum_32)
_add_f32 = adder(load_f32, load_f32, store_sum_32)
_add_f64 = adder(load_f64, load_f64, store_sum_64)
_finish_f16 = finisher_32(store_f16)
_finish_bf16 = finisher_32(store_bf16)
_finish_f32 = finisher_32(store_f32)


def backward_chunk(job: Address, number: int) -> int:
    """Do chunk `number` of a job, whose DATA is the address of its parameters (`backward_job`): -1."""
    parameters = load_item(job, DATA)
    low = number * load_item(job, CHUNK_SIZE)
    high = min(low + load_item(job, CHUNK_SIZE), load_item(job, TOTAL))
    row_blocks, column_blocks = load_item(parameters, ROW_BLOCKS), load_item(parameters, COLUMN_BLOCKS)
    if load_item(parameters, UNSORTED) != 0:
        rows = load_item(parameters, ROWS)
        for unit in range(low, high):
            block, part = unit // column_blocks, unit % column_blocks
            row, end_row = rows * block // row_blocks, rows * (block + 1) // row_blocks
            if load_item(parameters, UNSORTED) == INTO_OWN_ZEROS:
                _fill(parameters, load_item(parameters, RESULT), row, end_row, 0, 1)
            add_unsorted_rows(parameters, row, end_row, part)
        return -1
    for unit in range(low, high):
        batch = unit // (row_blocks * column_blocks)
        rest = unit - batch * (row_blocks * column_blocks)
        block = rest // column_blocks
        column_block = rest - block * column_blocks
        row, group = _boundary(parameters, block)
        end_row, end_group = _boundary(parameters, block + 1)
        _do_rows(parameters, batch, row, end_row, group, end_group, column_block, column_blocks)
    return -1


@inner
def _row(parameters: Address, group: int) -> int:
    """The row of the result that a group is added up to."""
    if load_item(parameters, SPARSE) != 0:
        return group
    first = load_item(load_item(parameters, STARTS), group)
    return load_item(load_item(parameters, PAIRS), first) >> load_item(parameters, LOW_BITS)


@inner
def _boundary(parameters: Address, block: int) -> tuple[int, int]:
    """The row that a block of rows begins with, and the first group that is not before it.

    Blocks are as heavy as each other, as far as a row is not too heavy for one.
    """
    rows, groups, blocks = load_item(parameters, ROWS), load_item(parameters, GROUPS), load_item(parameters, ROW_BLOCKS)
    starts = load_item(parameters, STARTS)
    if load_item(parameters, SPARSE) != 0:
        rows = groups
    if block <= 0:
        return 0, 0
    if block >= blocks:
        return rows, groups
    weight = (rows + _ADD_WEIGHT * load_item(parameters, COUNT)) * block // blocks
    before, after = 0, groups  # groups below `before` begin at this weight or below, those from `after` on above it
    while before < after:
        middle = (before + after) // 2
        if _row(parameters, middle) + _ADD_WEIGHT * load_item(starts, middle) <= weight:
            before = middle + 1
        else:
            after = middle
    end = rows if before == groups else _row(parameters, before)
    begin = 0 if before == 0 else _row(parameters, before - 1) + 1
    return min(max(weight - _ADD_WEIGHT * load_item(starts, before), begin), end), before


@inner
def _do_rows(
    parameters: Address,
    batch: int,
    row: int,
    end_row: int,
    group: int,
    end_group: int,
    part: int,
    parts: int,
) -> None:
    """Write one of so many parts of rows [row, end_row) of a batch, to which groups [group, end_group) are added up: of
    rows that are named some columns, and some of the others, whole.
    """
    width, size = load_item(parameters, WIDTH), load_item(parameters, ITEM_SIZE)
    first_column, end_column = width * part // parts, width * (part + 1) // parts
    starts = load_item(parameters, STARTS)
    gradient = load_item(parameters, GRADIENT) + batch * load_item(parameters, TUPLES) * width * size
    result = load_item(parameters, RESULT) + batch * load_item(parameters, ROWS) * width * size
    for number in range(group, end_group):
        here = _row(parameters, number)
        _fill(parameters, result, row, here, part, parts)
        first, end = load_item(starts, number), load_item(starts, number + 1)
        column = first_column
        while column < end_column:
            columns = min(_SUMS, end_column - column)
            _add_group(
                parameters, gradient + column * size, result + (here * width + column) * size, first, end, columns
            )
            column += columns
        row = here + 1
    _fill(parameters, result, row, end_row, part, parts)


@inner
def _add_group(parameters: Address, gradient: Address, target: Address, first: int, end: int, columns: int) -> None:
    """Write some columns of one row: the sum of those of tuples [first, end) of PAIRS, times the coefficient."""
    pairs, kind, size = load_item(parameters, PAIRS), load_item(parameters, KIND), load_item(parameters, ITEM_SIZE)
    step = load_item(parameters, WIDTH) * size
    mask = (1 << load_item(parameters, LOW_BITS)) - 1
    last = load_item(parameters, COUNT) - 1
    coefficient = f64_from_bits(load_item(parameters, COEFFICIENT))
    sums = _stack_sums()
    zero = _float32(0.0)
    if kind == FLOAT64:
        for at in range(columns):
            store_sum_64(sums, at, 0.0)
    else:
        for at in range(columns):
            store_sum_32(sums, at, zero)
    cut = columns < load_item(parameters, WIDTH)
    for at in range(first, end):
        number = load_item(pairs, at) & mask
        if columns * size > _READ_LINES * LINE:
            following = load_item(pairs, min(at + 1, last)) & mask
            if cut or following != number + 1:
                for line in range(0, columns * size, LINE):
                    prefetch(gradient + following * step + line)
        elif at % _READ_TUPLES == 0:
            stop = min(at + _READ_TUPLES, last + 1)
            if cut or (load_item(pairs, stop - 1) & mask) != number + stop - 1 - at:
                read = 0
                for other in range(at, stop):
                    source = gradient + (load_item(pairs, other) & mask) * step
                    for line in range(0, columns * size, LINE):
                        read |= load_u8(source + line)
                store_item(sums, _SUMS, read)
        source = gradient + number * step
        if kind == FLOAT32:
            _add_f32(sums, source, columns)
        elif kind == FLOAT64:
            _add_f64(sums, source, columns)
        elif kind == FLOAT16:
            _add_f16(sums, source, columns)
        else:
            _add_bf16(sums, source, columns)
    if kind == FLOAT32:
        _finish_f32(target, sums, columns, coefficient)
    elif kind == FLOAT64:
        _finish_f64(target, sums, columns, coefficient)
    elif kind == FLOAT16:
        _finish_f16(target, sums, columns, coefficient)
    else:
        _finish_bf16(target, sums, columns, coefficient)


@inner
def _fill(parameters: Address, result: Address, row: int, end: int, part: int, parts: int) -> None:
    """Write a part of the rows [row, end), which no tuple names: zeros times the coefficient, whose sign is theirs."""
    if parts > 1:
        row, end = row + (end - row) * part // parts, row + (end - row) * (part + 1) // parts
    if row < end:
        width, size = load_item(parameters, WIDTH), load_item(parameters, ITEM_SIZE)
        negative, past_caches = load_item(parameters, COEFFICIENT) < 0, load_item(parameters, NONTEMPORAL) != 0
        fill_zeros(result + row * width * size, (end - row) * width, size, negative, past_caches)


@inner
def fill_zeros(target: Address, count: int, size: int, negative: bool, past_caches: bool) -> None:
    """Write so many zeros of `size` bytes, with that sign; `past_caches` where they do not hold the result."""
    if not negative:
        _clear_bytes(target, count * size, past_caches)
    elif size == 4:
        for at in range(count):
            store_u32(target + 4 * at, 1 << 31)
    elif size == 2:
        for at in range(count):
            store_u16(target + 2 * at, 1 << 15)
    else:
        for at in range(count):
            store_u64(target + 8 * at, -(1 << 63))


@inner
def _clear_bytes(target: Address, size: int, past_caches: bool) -> None:
    if not past_caches or size < _LEAST_PAST_CACHES:
        clear(target, size)
        return
    begin = (target + LINE - 1) & -LINE
    end = (target + size) & -LINE
    clear(target, begin - target)
    zeros = aligned_line()
    clear(zeros, LINE)
    for line in range(begin, end, LINE):
        copy_line_nontemporal(line, zeros)
    fence()
    clear(end, target + size - end)
