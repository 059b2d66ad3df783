"""Lookups, compiled by Numba. All features of a request form one job, which the thread team shares.

Each feature is a record (`lookup_feature.Feature`) with the addresses of its array objects and the sizes of its plan.
`_lookup` checks the arrays against the plan and then the offsets. A chunk is a stretch of the work of all features,
measured in bytes read and written, so threads finish together even if bags differ in length. A chunk checks the indices
that it needs from a feature before it reads any row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Final

import numpy as np
from llvmlite import ir
from numba import types

from app.compilation.array_header import (
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
from app.compilation.decorators import inner
from app.compilation.intrinsics import Address, intrinsic
from app.kernels.check_lookup import BAD_OFFSETS, FeatureArrays, check_lookup_arrays
from app.kernels.numba_cpu.chunked_job import Job, end_of_chunk, first_of_chunk, shared_team, stack_job
from app.kernels.numba_cpu.chunked_job import run as run_job
from app.kernels.numba_cpu.compile_kernel import REFUSED, CompiledKernel, compile_kernel
from app.kernels.numba_cpu.copy_slices import copy_slice
from app.kernels.numba_cpu.float_kinds import FLOAT32, FLOAT64, KINDS
from app.kernels.numba_cpu.lookup_feature import (
    GIVEN,
    NONE,
    POOLINGS,
    SUM,
    Feature,
    feature_at,
    load_index,
    prefetch_row,
    row_of,
    rows_ahead,
    start_of_bag,
)
from app.kernels.numba_cpu.memory_intrinsics import LINE
from app.kernels.numba_cpu.pool_bags import pool_bags
from app.kernels.numba_cpu.thread_team import settings_of
from app.kernels.numba_cpu.thresholds import LEAST_LOOKUP_CHUNK
from app.kernels.numba_cpu.typed_memory import dtype_of, record_of
from app.operators.lookup_plan import FeaturePlan

_FEATURE_BYTES: Final = dtype_of(Feature).itemsize
_INT64: Final = ir.IntType(64)

_header_at: Final[Callable[[Address], ArrayHeader]] = intrinsic(
    header, (types.int64,), lambda builder, value: builder.add(value, _INT64(0))
)
"""Return the array whose object is at an address."""


class LookupJob(Job):
    """A lookup. Its units are the cache lines read and written, over all features."""

    features: Address
    count: int
    """Number of features."""


_job_at: Final = record_of(LookupJob)


def run(plans: Sequence[FeaturePlan], arrays: Sequence[FeatureArrays], threads: int = 1) -> int:
    """See `app.kernels.CpuKernel.lookup`."""
    kernel, team = compiled(), shared_team()
    if threads > 1:
        team.prepare(threads)
    if len(plans) != len(arrays):
        check_lookup_arrays(plans, arrays)
    features = np.empty((len(plans), _FEATURE_BYTES // 8), np.int64)
    if plans:
        try:
            features[:, :GIVEN] = [_given_fields(plan, given) for plan, given in zip(plans, arrays, strict=True)]
        except OverflowError:
            raise TypeError("the plan has a size that no array can have") from None
    weighted = all(plan.weighted == (given.weights is not None) for plan, given in zip(plans, arrays, strict=True))
    first: int = REFUSED
    if weighted:
        first = kernel.run(features.reshape(-1), kernel.chunk, team.address, threads - 1)
    if first == REFUSED:
        check_lookup_arrays(plans, arrays)
        raise TypeError("the plan has a size that no array can have")
    return first


def _given_fields(plan: FeaturePlan, arrays: FeatureArrays) -> tuple[int, ...]:
    """Return the fields of a feature that come from its plan and its arrays."""
    table, indices, offsets, weights, fill, out = arrays
    return (
        id(table),
        id(indices),
        0 if offsets is None else id(offsets),
        0 if weights is None else id(weights),
        0 if fill is None else id(fill),
        id(out),
        plan.rows,
        plan.row_items,
        plan.item_size,
        KINDS.get(plan.dtype, 0),
        POOLINGS[plan.pooling],
        plan.indices,
        plan.bags,
        plan.group,
        plan.stride,
        plan.column,
    )


@cache
def compiled() -> CompiledKernel:
    """Return the compiled functions."""
    return compile_kernel(_lookup, (header, types.int64, types.int64, types.int64), lookup_chunk)


@inner
def _is_usable(feature_address: Address, array_type: Address) -> bool:
    """Return whether the arrays of a feature match its plan. Also sets the fields that are derived from the arrays."""
    feature = feature_at(feature_address)
    sizes = feature.rows | feature.row_items | feature.count | feature.bags | feature.stride | feature.column
    item_size, group = feature.item_size, feature.group
    if sizes < 0 or group < 1 or not 1 <= item_size <= 16:
        return False
    table, indices = _header_at(feature.table_object), _header_at(feature.indices_object)
    out = _header_at(feature.out_object)
    if not (is_array(table, array_type) and is_array(indices, array_type) and is_array(out, array_type)):
        return False
    if not (holds_carriers(table, item_size) and holds_carriers(out, item_size) and is_writable(out)):
        return False
    index_bytes = index_type(indices)
    if index_bytes != 4 and index_bytes != 8:  # noqa: PLR1714  (compiles better)
        return False
    row_bytes = checked_product(feature.row_items, item_size)
    wide = checked_product(group, row_bytes)
    if row_bytes < 0 or wide < 0 or feature.stride < wide or length(indices) != feature.count:
        return False
    if length(table) != checked_product(feature.rows, feature.row_items):
        return False
    if feature.column % item_size != 0 or feature.stride % item_size != 0:
        return False
    written = feature.count // group
    feature.offsets = feature.weights = feature.fill = 0
    if feature.pooling == NONE:
        if feature.offsets_object != 0 or feature.weights_object != 0 or feature.count % group != 0:
            return False
    else:
        size = 4 if feature.item_kind == FLOAT32 else (8 if feature.item_kind == FLOAT64 else 2)
        if feature.item_kind == 0 or size != item_size or group != 1 or feature.offsets_object == 0:
            return False
        offsets = _header_at(feature.offsets_object)
        if not is_array(offsets, array_type) or index_type(offsets) != index_bytes or length(offsets) != feature.bags:
            return False
        feature.offsets = address(offsets)
        written = feature.bags
    if feature.weights_object != 0:
        weights = _header_at(feature.weights_object)
        if feature.pooling != SUM or not is_array(weights, array_type) or not holds_carriers(weights, item_size):
            return False
        if length(weights) != feature.count:
            return False
        feature.weights = address(weights)
    if feature.fill_object != 0:
        fill = _header_at(feature.fill_object)
        if not is_array(fill, array_type) or not holds_carriers(fill, item_size) or length(fill) != feature.row_items:
            return False
        feature.fill = address(fill)
    if written > 0:
        last = checked_product(written - 1, feature.stride)
        room = length(out) * item_size - wide - feature.column
        if room < 0 or last < 0 or last > room:
            return False
    feature.table = address(table)
    feature.indices = address(indices)
    feature.out = address(out) + feature.column
    feature.index_bytes = index_bytes
    feature.row_bytes = row_bytes
    feature.ahead = rows_ahead(row_bytes)
    return True


@inner
def _are_offsets(feature_address: Address) -> bool:
    """Return whether the offsets of a feature start at 0, never decrease, and do not exceed the number of indices."""
    feature = feature_at(feature_address)
    offsets, size = feature.offsets, feature.index_bytes
    if feature.bags == 0:
        return feature.count == 0
    before = load_index(offsets, size, 0)
    signs = -before | before  # negative unless `before` is 0
    for bag in range(1, feature.bags):
        here = load_index(offsets, size, bag)
        signs |= here - before
        before = here
    return signs >= 0 and before <= feature.count


def _lookup(features: ArrayHeader, chunk: Address, team: Address, helpers: int) -> int:
    """Look up all features with at most `helpers` helpers. Returns -1, the index of an invalid feature, or REFUSED."""
    array_type = settings_of(team).array_type
    count = length(features) * 8 // _FEATURE_BYTES
    total = 0
    for number in range(count):
        feature_address = address(features) + _FEATURE_BYTES * number
        if not _is_usable(feature_address, array_type):
            return REFUSED
        feature = feature_at(feature_address)
        feature.unit = feature.row_bytes // LINE + 1
        work = 2 * feature.count if feature.pooling == NONE else feature.count + feature.bags
        size = checked_product(work, feature.unit)
        feature.begin = total
        total += size
        if size < 0 or total < 0:
            return REFUSED
        feature.end = total
    for number in range(count):
        feature_address = address(features) + _FEATURE_BYTES * number
        if feature_at(feature_address).pooling != NONE and not _are_offsets(feature_address):
            return number + BAD_OFFSETS
    if total == 0:
        return -1
    job_address = stack_job()
    job = _job_at(job_address)
    job.run_chunk = chunk
    job.total = total
    job.least_chunk = LEAST_LOOKUP_CHUNK // LINE
    job.features = address(features)
    job.count = count
    return run_job(team, job_address, helpers, 16 * total, False)


def lookup_chunk(job_address: Address, number: int) -> int:
    """Look up the chunk with index `number` of a job. Returns -1, or the index of a feature with an invalid index."""
    job = _job_at(job_address)
    low, high = first_of_chunk(job_address, number), end_of_chunk(job_address, number)
    for at in range(job.count):
        feature_address = job.features + _FEATURE_BYTES * at
        feature = feature_at(feature_address)
        if feature.end <= low or feature.begin >= high:
            continue
        begin, stop = low - feature.begin, high - feature.begin
        if feature.pooling == NONE:
            unit = 2 * feature.unit
            first, end = max((begin + unit - 1) // unit, 0), min((stop + unit - 1) // unit, feature.count)
            if first < end:
                if not _are_in_bounds(feature_address, first, end):
                    return at
                _copy_rows(feature_address, first, end)
        else:
            first, end = _first_bag(feature_address, begin), _first_bag(feature_address, stop)
            if first < end:
                if not _are_in_bounds(
                    feature_address, start_of_bag(feature_address, first), start_of_bag(feature_address, end)
                ):
                    return at
                pool_bags(feature_address, first, end)
    return -1


@inner
def _first_bag(feature_address: Address, work: int) -> int:
    """Return the first bag that is preceded by at least `work` units of the feature's work."""
    feature = feature_at(feature_address)
    low, high = 0, feature.bags
    while low < high:
        middle = (low + high) // 2
        if (start_of_bag(feature_address, middle) + middle) * feature.unit < work:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def _are_in_bounds(feature_address: Address, first: int, end: int) -> bool:
    """Return whether each of the indices [first, end) selects a row of the table, or the row `fill` if there is one."""
    feature = feature_at(feature_address)
    indices, size, last = feature.indices, feature.index_bytes, feature.rows
    if feature.fill == 0:
        last -= 1
    signs = 0
    for at in range(first, end):
        index = load_index(indices, size, at)
        signs |= index | (last - index)
    return signs >= 0


@inner
def _copy_rows(feature_address: Address, first: int, end: int) -> None:
    """Copy the rows of the indices [first, end) to their places in the output."""
    feature = feature_at(feature_address)
    group, stride, width, ahead = feature.group, feature.stride, feature.row_bytes, feature.ahead
    if width == 0:
        return
    row = first // group
    place = first - row * group
    target = feature.out + row * stride
    for at in range(first, min(first + ahead, end)):
        prefetch_row(feature_address, at)
    for at in range(first, end):
        prefetch_row(feature_address, min(at + ahead, end - 1))
        copy_slice(target + place * width, row_of(feature_address, at), width)
        place += 1
        if place == group:
            place = 0
            target += stride
