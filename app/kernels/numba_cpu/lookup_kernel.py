"""Lookups compiled by Numba: all features of a request as one job, which the gather's threads share by its rows.

Each feature is described in FIELDS int64 of one array, by the addresses of its arrays' objects and the sizes of its
plan. `_lookup` compares the two, and checks the offsets; a chunk is a stretch of the work of all features, measured in
bytes read and written, so that threads end together however long the bags are. A chunk checks the indices of a feature
that it needs before it reads a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from time import perf_counter
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types

from app.kernels.check_lookup import BAD_OFFSETS, FeatureArrays, check_lookup_arrays
from app.kernels.numba_cpu import gather_kernel
from app.kernels.numba_cpu.gather_job import CHUNK_SIZE as JOB_CHUNK_SIZE
from app.kernels.numba_cpu.gather_job import COMPONENTS, DEPTH, INDEX_TYPE, OWN_INDEX_TYPE, write_job
from app.kernels.numba_cpu.gather_job import TOTAL as JOB_TOTAL
from app.kernels.numba_cpu.gather_kernel import CHUNK_OPTIONS, ENTRY_OPTIONS, REFUSED
from app.kernels.numba_cpu.memory_intrinsics import (
    LINE,
    copy_1,
    copy_2,
    copy_4,
    copy_8,
    copy_16,
    copy_32,
    copy_64,
    load_item,
    prefetch,
    stack_scratch,
    store_item,
)
from app.kernels.numba_cpu.ndarray_abi import (
    ArrayHeader,
    address,
    checked_product,
    header,
    holds_carriers,
    index_type,
    is_array,
    is_writable,
    length,
)
from app.kernels.numba_cpu.pool_rows import load_index, pool_columns
from app.kernels.numba_cpu.run_job import ARRAY_TYPE, WAKE_FROM, carry_out
from app.kernels.numba_cpu.shared_job import CHUNKS_PER_THREAD
from app.kernels.numba_cpu.split_over_threads import acquire, is_worth_sharing, job_of, setting
from app.llvm_intrinsics import Address, inlined, inner, intrinsic
from app.operators.lookup import FeaturePlan

# Fields of a feature, as `lookup` writes them: addresses of arrays' objects, 0 for none, and the plan.
(
    _TABLE, _INDICES, _OFFSETS, _WEIGHTS, _FILL, _OUT,
    _ROWS, _ROW_ITEMS, _ITEM_SIZE, _TYPE, _POOLING, _COUNT, _BAGS, _GROUP, _STRIDE, _COLUMN,
) = range(16)  # fmt: skip
# The same, as `_lookup` adds them for the chunks: addresses of first items, and where the feature's work lies.
(
    _TABLE_AT, _INDICES_AT, _OFFSETS_AT, _WEIGHTS_AT, _FILL_AT, _OUT_AT, _INDEX_BYTES, _ROW_BYTES, _UNIT, _BEGIN, _END,
) = range(16, 27)  # fmt: skip
FIELDS: Final = 27
_NONE, _SUM, _MEAN, _MAX = range(4)
_POOLINGS: Final = {"none": _NONE, "sum": _SUM, "mean": _MEAN, "max": _MAX}
_FLOAT32, _FLOAT64, _FLOAT16, _BFLOAT16 = range(1, 5)
_TYPES: Final = {"float32": _FLOAT32, "float64": _FLOAT64, "float16": _FLOAT16, "bfloat16": _BFLOAT16}
_ROWS_AHEAD: Final = 16
"""How many rows before it is read a row is asked for; measured with `benchmarks.lookup`, as the next one."""
_BYTES_AHEAD: Final = 1 << 14
"""At most so many bytes of rows are asked for ahead."""
_LEAST_CHUNK: Final = 1 << 15
"""Bytes that a chunk reads and writes at least."""
_INT64: Final = ir.IntType(64)

_header_at: Final[Callable[[Address], ArrayHeader]] = intrinsic(
    header, (types.int64,), lambda builder, value: builder.add(value, _INT64(0))
)
"""The array whose object is at an address."""


def warm(progress: Callable[[str], None] | None = None) -> None:
    """Compile, or load from the cache that `gather_kernel.configure` has named, all that `lookup` ever uses."""
    started = perf_counter()
    _ready()
    if progress is not None:
        progress(f"kernel of lookups ready after {perf_counter() - started:.2f} s")


def lookup(plans: Sequence[FeaturePlan], arrays: Sequence[FeatureArrays], threads: int = 1) -> int:
    """See `app.kernels.Kernel.lookup`."""
    entry, chunk = _ready()
    team = gather_kernel.thread_team()
    if threads > 1:
        gather_kernel.prepare(team, threads)
    if len(plans) != len(arrays):
        check_lookup_arrays(plans, arrays)
    words = np.empty(FIELDS * len(plans), np.int64)
    fields = words.reshape(-1, FIELDS)
    try:
        fields[:, :16] = (
            [
                (
                    id(table),
                    id(indices),
                    0 if offsets is None else id(offsets),
                    0 if weights is None else id(weights),
                    0 if fill is None else id(fill),
                    id(out),
                    plan.rows,
                    plan.row_items,
                    plan.item_size,
                    _TYPES.get(plan.dtype, 0),
                    _POOLINGS[plan.pooling],
                    plan.indices,
                    plan.bags,
                    plan.group,
                    plan.stride,
                    plan.column,
                )
                for plan, (table, indices, offsets, weights, fill, out) in zip(plans, arrays, strict=True)
            ]
            if plans
            else np.empty((0, 16), np.int64)
        )
    except OverflowError:
        raise TypeError("the plan has a size that no array can have") from None
    weighted = all(plan.weighted == (given.weights is not None) for plan, given in zip(plans, arrays, strict=True))
    first: int = entry(words, chunk, team.address, threads - 1) if weighted else REFUSED
    if first == REFUSED:
        check_lookup_arrays(plans, arrays)
        raise TypeError("the plan has a size that no array can have")
    return first


@cache
def _compiled() -> tuple[Any, Any]:
    """`_lookup` and `lookup_chunk`."""
    integer = types.int64
    compiler: Any = njit(**ENTRY_OPTIONS)
    chunk, entry = cfunc(integer(integer, integer), **CHUNK_OPTIONS)(lookup_chunk), compiler(_lookup)
    entry.compile((header, integer, integer, integer))
    entry.disable_compile()
    return entry, chunk


@cache
def _ready() -> tuple[Any, Address]:
    """`_lookup` without the search for a signature that fits, and the address of `lookup_chunk`."""
    entry, chunk = _compiled()
    return entry.overloads[entry.signatures[0]].entry_point, chunk.address


@inner
def _is_usable(feature: Address, array_type: Address) -> bool:
    """Whether the arrays of a feature are as its plan says; their addresses are added to its fields."""
    rows, row_items, item_size = (
        load_item(feature, _ROWS),
        load_item(feature, _ROW_ITEMS),
        load_item(feature, _ITEM_SIZE),
    )
    count, bags, group = load_item(feature, _COUNT), load_item(feature, _BAGS), load_item(feature, _GROUP)
    stride, column, pooling = load_item(feature, _STRIDE), load_item(feature, _COLUMN), load_item(feature, _POOLING)
    if (rows | row_items | count | bags | stride | column) < 0 or group < 1 or not 1 <= item_size <= 16:
        return False
    table, indices, out = (
        _header_at(load_item(feature, _TABLE)),
        _header_at(load_item(feature, _INDICES)),
        _header_at(load_item(feature, _OUT)),
    )
    if not (is_array(table, array_type) and is_array(indices, array_type) and is_array(out, array_type)):
        return False
    if not (holds_carriers(table, item_size) and holds_carriers(out, item_size) and is_writable(out)):
        return False
    index_bytes = index_type(indices)
    if index_bytes != 4 and index_bytes != 8:  # noqa: PLR1714  (compiles better)
        return False
    row_bytes = checked_product(row_items, item_size)
    wide = checked_product(group, row_bytes)
    if row_bytes < 0 or wide < 0 or stride < wide or length(indices) != count:
        return False
    if length(table) != checked_product(rows, row_items):
        return False
    if column % item_size != 0 or stride % item_size != 0:
        return False
    has_offsets, has_weights, has_fill = (
        load_item(feature, _OFFSETS) != 0,
        load_item(feature, _WEIGHTS) != 0,
        load_item(feature, _FILL) != 0,
    )
    written = count // group
    offsets_at, weights_at, fill_at = 0, 0, 0
    if pooling == _NONE:
        if has_offsets or has_weights or count % group != 0:
            return False
    else:
        kind = load_item(feature, _TYPE)
        size = 4 if kind == _FLOAT32 else (8 if kind == _FLOAT64 else 2)
        if not 1 <= kind <= _BFLOAT16 or size != item_size or group != 1 or not has_offsets:
            return False
        offsets = _header_at(load_item(feature, _OFFSETS))
        if not is_array(offsets, array_type) or index_type(offsets) != index_bytes or length(offsets) != bags:
            return False
        offsets_at = address(offsets)
        written = bags
    if has_weights:
        weights = _header_at(load_item(feature, _WEIGHTS))
        if pooling != _SUM or not is_array(weights, array_type) or not holds_carriers(weights, item_size):
            return False
        if length(weights) != count:
            return False
        weights_at = address(weights)
    if has_fill:
        fill = _header_at(load_item(feature, _FILL))
        if not is_array(fill, array_type) or not holds_carriers(fill, item_size) or length(fill) != row_items:
            return False
        fill_at = address(fill)
    if written > 0:
        last = checked_product(written - 1, stride)
        room = length(out) * item_size - wide - column
        if room < 0 or last < 0 or last > room:
            return False
    store_item(feature, _TABLE_AT, address(table))
    store_item(feature, _INDICES_AT, address(indices))
    store_item(feature, _OFFSETS_AT, offsets_at)
    store_item(feature, _WEIGHTS_AT, weights_at)
    store_item(feature, _FILL_AT, fill_at)
    store_item(feature, _OUT_AT, address(out) + column)
    store_item(feature, _INDEX_BYTES, index_bytes)
    store_item(feature, _ROW_BYTES, row_bytes)
    return True


@inner
def _are_offsets(feature: Address) -> bool:
    """Whether the offsets of a feature begin with 0, never fall, and do not exceed the number of indices."""
    offsets, size, bags = load_item(feature, _OFFSETS_AT), load_item(feature, _INDEX_BYTES), load_item(feature, _BAGS)
    count = load_item(feature, _COUNT)
    if bags == 0:
        return count == 0
    before = load_index(offsets, size, 0)
    signs = -before | before  # negative unless it is 0
    for bag in range(1, bags):
        here = load_index(offsets, size, bag)
        signs |= here - before
        before = here
    return signs >= 0 and before <= count


def _lookup(words: ArrayHeader, chunk: Address, team: Address, helpers: int) -> int:
    """All features, with up to so many helpers: -1, the number of one that is wrong, or REFUSED."""
    array_type = setting(team, ARRAY_TYPE)
    features = length(words) // FIELDS
    total = 0
    for number in range(features):
        feature = address(words) + 8 * FIELDS * number
        if not _is_usable(feature, array_type):
            return REFUSED
        unit = load_item(feature, _ROW_BYTES) // LINE + 1
        work = load_item(feature, _COUNT) + load_item(feature, _BAGS)
        if load_item(feature, _POOLING) == _NONE:
            work = 2 * load_item(feature, _COUNT)
        store_item(feature, _UNIT, unit)
        store_item(feature, _BEGIN, total)
        size = checked_product(work, unit)
        total += size
        if size < 0 or total < 0:
            return REFUSED
        store_item(feature, _END, total)
    for number in range(features):
        feature = address(words) + 8 * FIELDS * number
        if load_item(feature, _POOLING) != _NONE and not _are_offsets(feature):
            return number + BAD_OFFSETS
    if total == 0:
        return -1
    long = total > setting(team, WAKE_FROM) // 16
    split = helpers > 0 and is_worth_sharing(team, long) and acquire(team)
    job = stack_scratch()
    size = total
    if split:
        job = job_of(team)
        size = max(total // (CHUNKS_PER_THREAD * (helpers + 1)), _LEAST_CHUNK // LINE)
    write_job(job, (0, 0, address(words), 0), features, 0, total, size, 0, chunk)
    store_item(job, INDEX_TYPE, OWN_INDEX_TYPE)
    return carry_out(team, job, split, helpers, long, False)


def lookup_chunk(job: Address, number: int) -> int:
    """Look chunk `number` of a job up: -1, or the number of a feature with a bad index."""
    words, features = load_item(job, COMPONENTS), load_item(job, DEPTH)
    low = number * load_item(job, JOB_CHUNK_SIZE)
    high = min(low + load_item(job, JOB_CHUNK_SIZE), load_item(job, JOB_TOTAL))
    for at in range(features):
        feature = words + 8 * FIELDS * at
        if load_item(feature, _END) > low and load_item(feature, _BEGIN) < high:
            from_, to = low - load_item(feature, _BEGIN), high - load_item(feature, _BEGIN)
            unit = load_item(feature, _UNIT)
            if load_item(feature, _POOLING) == _NONE:
                first = max((from_ + 2 * unit - 1) // (2 * unit), 0)
                end = min((to + 2 * unit - 1) // (2 * unit), load_item(feature, _COUNT))
                if first < end:
                    if not _are_inside(feature, first, end):
                        return at
                    _copy_rows(feature, first, end)
            else:
                first, end = _first_bag(feature, from_), _first_bag(feature, to)
                if first < end:
                    if not _are_inside(feature, _offset(feature, first), _offset(feature, end)):
                        return at
                    _pool_bags(feature, first, end)
    return -1


@inlined
def _offset(feature: Address, bag: int) -> int:
    """Where a bag begins, or for the one behind the last where that ends."""
    if bag >= load_item(feature, _BAGS):
        return load_item(feature, _COUNT)
    return load_index(load_item(feature, _OFFSETS_AT), load_item(feature, _INDEX_BYTES), bag)


@inner
def _first_bag(feature: Address, work: int) -> int:
    """The first bag before which there is `work` or more of the feature's."""
    unit = load_item(feature, _UNIT)
    low, high = 0, load_item(feature, _BAGS)
    while low < high:
        middle = (low + high) // 2
        if (_offset(feature, middle) + middle) * unit < work:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _are_inside(feature: Address, first: int, end: int) -> bool:
    """Whether each of these indices is that of a row, of the row `fill` too where there is one."""
    indices, size, last = load_item(feature, _INDICES_AT), load_item(feature, _INDEX_BYTES), load_item(feature, _ROWS)
    if load_item(feature, _FILL_AT) == 0:
        last -= 1
    signs = 0
    for at in range(first, end):
        index = load_index(indices, size, at)
        signs |= index | (last - index)
    return signs >= 0


@inlined
def _row(feature: Address, at: int) -> Address:
    """The address of the row of an index."""
    index = load_index(load_item(feature, _INDICES_AT), load_item(feature, _INDEX_BYTES), at)
    if index == load_item(feature, _ROWS):
        return load_item(feature, _FILL_AT)
    return load_item(feature, _TABLE_AT) + index * load_item(feature, _ROW_BYTES)


@inlined
def _ahead(row_bytes: int) -> int:
    """How many rows ahead rows of so many bytes are asked for."""
    return max(1, min(_ROWS_AHEAD, _BYTES_AHEAD // max(row_bytes, 1)))


@inner
def _copy_rows(feature: Address, first: int, end: int) -> None:
    """Copy the rows of these indices to their places in the output."""
    group, stride, width = load_item(feature, _GROUP), load_item(feature, _STRIDE), load_item(feature, _ROW_BYTES)
    if width == 0:
        return
    row = first // group
    place = first - row * group
    target = load_item(feature, _OUT_AT) + row * stride
    ahead = _ahead(width)
    for at in range(first, min(first + ahead, end)):
        _ask_for(_row(feature, at), width)
    for at in range(first, end):
        _ask_for(_row(feature, min(at + ahead, end - 1)), width)
        _copy(target + place * width, _row(feature, at), width)
        place += 1
        if place == group:
            place = 0
            target += stride


@inlined
def _ask_for(row: Address, width: int) -> None:
    for c in range(0, min(width, _BYTES_AHEAD), LINE):
        prefetch(row + c)


@inlined
def _copy(target: Address, source: Address, width: int) -> None:
    """Copy so many bytes, by two copies that overlap where the width is no power of two."""
    if width >= LINE:
        for c in range(0, width - LINE, LINE):
            copy_64(target + c, source + c)
        copy_64(target + width - LINE, source + width - LINE)
    elif width >= 32:
        copy_32(target, source)
        copy_32(target + width - 32, source + width - 32)
    elif width >= 16:
        copy_16(target, source)
        copy_16(target + width - 16, source + width - 16)
    elif width >= 8:
        copy_8(target, source)
        copy_8(target + width - 8, source + width - 8)
    elif width >= 4:
        copy_4(target, source)
        copy_4(target + width - 4, source + width - 4)
    elif width >= 2:
        copy_2(target, source)
        copy_2(target + width - 2, source + width - 2)
    else:
        copy_1(target, source)


_sum_float32: Final = pool_columns("float32", largest=False)
_sum_float64: Final = pool_columns("float64", largest=False)
_sum_float16: Final = pool_columns("float16", largest=False)
_sum_bfloat16: Final = pool_columns("bfloat16", largest=False)
_max_float32: Final = pool_columns("float32", largest=True)
_max_float64: Final = pool_columns("float64", largest=True)
_max_float16: Final = pool_columns("float16", largest=True)
_max_bfloat16: Final = pool_columns("bfloat16", largest=True)


@inner
def _pool_bags(feature: Address, first: int, end: int) -> None:
    """Pool these bags into their rows of the output."""
    kind, pooling, items = load_item(feature, _TYPE), load_item(feature, _POOLING), load_item(feature, _ROW_ITEMS)
    table, indices, size = (
        load_item(feature, _TABLE_AT),
        load_item(feature, _INDICES_AT),
        load_item(feature, _INDEX_BYTES),
    )
    weights, fill, rows = load_item(feature, _WEIGHTS_AT), load_item(feature, _FILL_AT), load_item(feature, _ROWS)
    width, stride = load_item(feature, _ROW_BYTES), load_item(feature, _STRIDE)
    mean, largest, ahead = pooling == _MEAN, pooling == _MAX, _ahead(width)
    target = load_item(feature, _OUT_AT) + first * stride
    begin = _offset(feature, first)
    last = max(_offset(feature, end) - 1, begin)
    for at in range(begin, min(begin + ahead, last)):
        _ask_for(_row(feature, at), width)
    for bag in range(first, end):
        stop = _offset(feature, bag + 1)
        if kind == _FLOAT32:
            if largest:
                _max_float32(
                    target, table, items, indices, size, begin, stop, last, width, weights, fill, rows, ahead, mean
                )
            else:
                _sum_float32(
                    target, table, items, indices, size, begin, stop, last, width, weights, fill, rows, ahead, mean
                )
        elif kind == _FLOAT64:
            if largest:
                _max_float64(
                    target, table, items, indices, size, begin, stop, last, width, weights, fill, rows, ahead, mean
                )
            else:
                _sum_float64(
                    target, table, items, indices, size, begin, stop, last, width, weights, fill, rows, ahead, mean
                )
        elif kind == _FLOAT16:
            if largest:
                _max_float16(
                    target, table, items, indices, size, begin, stop, last, width, weights, fill, rows, ahead, mean
                )
            else:
                _sum_float16(
                    target, table, items, indices, size, begin, stop, last, width, weights, fill, rows, ahead, mean
                )
        elif largest:
            _max_bfloat16(
                target, table, items, indices, size, begin, stop, last, width, weights, fill, rows, ahead, mean
            )
        else:
            _sum_bfloat16(
                target, table, items, indices, size, begin, stop, last, width, weights, fill, rows, ahead, mean
            )
        target += stride
        begin = stop
