"""One chunk of a gather. This code takes most of the CPU time of the service.

It processes the slices of the output in blocks. For each block it reads the index tuples as int64, checks them and
computes the address of each slice (`_write_block`, called by `_write_addresses`). Then it copies the slices
(`copy_slices`) and prefetches each one some time before its copy.

Measure it with `python -m benchmarks.kernels gather`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.compilation.decorators import inlined, inner
from app.compilation.intrinsics import Address, prefetch, stack_words
from app.kernels.numba_cpu.chunked_job import Job, end_of_chunk, first_of_chunk
from app.kernels.numba_cpu.copy_slices import copy_block
from app.kernels.numba_cpu.memory_intrinsics import (
    LINE,
    add_atomically,
    aligned_line,
    fence,
    load_invariant,
    load_item,
    store_item,
)
from app.kernels.numba_cpu.resolve_indices import first_bad
from app.kernels.numba_cpu.thresholds import ITEMS_AHEAD, NEIGHBORS_BYTES, ROW_BYTES_AHEAD, ROWS_AHEAD
from app.kernels.numba_cpu.typed_memory import record_of
from app.kernels.numba_cpu.widen_indices import widen_components

BLOCK: Final = 1024
"""Maximum number of slices in a block. Together with their components, they fit into an L1 cache of 32 KiB."""
_COMPONENTS: Final = 2 * BLOCK
"""Maximum number of components in a block."""

_stack_addresses: Final = stack_words(BLOCK + ITEMS_AHEAD)
_stack_bases: Final = stack_words(BLOCK)
_stack_components: Final = stack_words(_COMPONENTS)


class GatherJob(Job):
    """A gather. Its units are the slices of the output."""

    data: Address
    indices: Address
    out: Address
    sizes: Address
    """Address of the sizes of the indexed axes, int64."""
    depth: int
    """Number of components per tuple."""
    index_type: int
    """See `array_header.index_type`."""
    tuples: int
    """Number of tuples per batch."""
    batches_per_set: int
    """Number of consecutive batches that share tuples; 0 if all batches do."""
    stride: int
    """Stride between batches of data, in bytes."""
    width: int
    """Number of bytes per slice."""
    fill: Address
    """Address of the slice that a tuple out of bounds selects; 0 if such a tuple is an error."""
    replaced: Address
    """Address of the counter of components out of bounds, if `fill` is set."""
    wrap: bool
    """Whether negative components count from the end."""
    prefetches: bool
    """Whether slices are prefetched before they are copied, because no cache holds the data."""
    nontemporal: bool
    """Whether stores of slices bypass the caches, which could not hold the output."""


gather_job_at: Final = record_of(GatherJob)


def gather_chunk(job_address: Address, number: int) -> int:
    """Gather the chunk with index `number` of a job. Returns its first invalid component, or -1.

    A block is part of one batch, or has the length of several whole batches but may start anywhere in a batch. For each
    tuple of a block, `bases` holds the distance in bytes from the batch of the first tuple to the batch of this tuple.
    `bases` is the same for all blocks. Example: if batches have 3 tuples, and blocks have 6 and start at the second
    tuple of a batch, `bases` is (0, 0, 1, 1, 1, 2) * stride.
    """
    job = gather_job_at(job_address)
    first, end = first_of_chunk(job_address, number), end_of_chunk(job_address, number)
    if first >= end:
        return -1
    width, tuples, stride = job.width, job.tuples, job.stride
    ahead = 0
    if job.prefetches:
        ahead = ITEMS_AHEAD if width < LINE else max(1, min(ROWS_AHEAD, ROW_BYTES_AHEAD // width))
    most = max(1, min(BLOCK, _COMPONENTS // job.depth))
    several = tuples <= most  # a block covers several batches
    if several:
        most = most // tuples * tuples
    addresses, bases, block, joint = _stack_addresses(), _stack_bases(), _stack_components(), aligned_line()
    batch = first // tuples
    place = first - batch * tuples
    left = tuples - place if several else tuples  # if a block is part of a batch, its bases are 0
    _write_bases(bases, min(most, end - first), left, tuples, stride)
    done = first
    while done < end:
        count = min(most, end - done)
        if not several:
            count = min(count, tuples - place)
        if (
            several and job.batches_per_set == 0 and done > first
        ):  # same tuples as in the previous block; never with `fill`
            for t in range(count):
                store_item(addresses, t, load_item(addresses, t) + most // tuples * stride)
        else:
            bad = _write_addresses(job_address, batch, place, count, block, bases, addresses)
            if bad >= 0:
                return bad
        if width > 0:
            _copy(job.out + done * width, addresses, count, width, ahead, joint if job.nontemporal else 0)
        done += count
        if several:
            batch += most // tuples
        else:
            place += count
            if place == tuples:
                place = 0
                batch += 1
    if job.nontemporal:
        fence()
    return -1


@inlined
def _write_bases(bases: Address, count: int, left: int, tuples: int, stride: int) -> None:
    """Write the `bases` of `count` tuples. The first `left` of them belong to the first batch."""
    base = 0
    for t in range(count):
        store_item(bases, t, base)
        left -= 1
        if left == 0:
            left = tuples
            base += stride


@inlined
def _copy(target: Address, addresses: Address, count: int, width: int, ahead: int, joint: Address) -> None:
    """Copy the slices of a block. Prefetch each one `ahead` slices before its copy, or never if `ahead` is 0.

    `joint` is the address of a spare line of memory if stores bypass the caches, else 0.
    """
    last = load_item(addresses, count - 1)
    # The hardware prefetcher handles items that share cache lines; software prefetches would only disturb it.
    if width < LINE and abs(last - load_item(addresses, 0)) < NEIGHBORS_BYTES * count:
        ahead = 0
    for t in range(min(count, ahead)):
        prefetch(load_item(addresses, t))
    for t in range(count, count + ahead):
        store_item(addresses, t, last)  # nothing to prefetch after the block
    copy_block(target, addresses, count, width, ahead, joint)


@inlined
def _write_addresses(
    job_address: Address, batch: int, place: int, count: int, block: Address, bases: Address, addresses: Address
) -> int:
    """Write the addresses of the slices for `count` tuples, starting at tuple `place` of a batch.

    Returns the first invalid component, or -1. `block` has room for the components as int64.
    """
    job = gather_job_at(job_address)
    components = _block_of_components(job_address, batch, place, count, block)
    signs = _write_block(job_address, components, count, job.data + batch * job.stride, bases, addresses)
    if signs >= 0:
        return -1
    if job.fill != 0:
        _fill_bad_tuples(components, count, job_address, addresses)
        return -1
    bad = first_bad(components, count, job.sizes, job.depth, job.wrap)
    at = place + bad // job.depth
    return _first_tuple(job_address, batch + at // job.tuples, at % job.tuples) * job.depth + bad % job.depth


@inlined
def _first_tuple(job_address: Address, batch: int, place: int) -> int:
    """Return which index tuple is used for position `place` of a batch."""
    job = gather_job_at(job_address)
    if job.batches_per_set == 0:
        return place
    return batch // job.batches_per_set * job.tuples + place


@inlined
def _block_of_components(job_address: Address, batch: int, place: int, count: int, block: Address) -> Address:
    """Return the address of the components, as int64, of `count` tuples, starting at tuple `place` of a batch.

    If the indices are int64 and the tuples are contiguous, the components are read in place; otherwise, they are copied
    to `block`.
    """
    job = gather_job_at(job_address)
    tuples, depth = job.tuples, job.depth
    own = job.batches_per_set == 1 or place + count <= tuples
    if own and job.index_type == 8:
        return job.indices + 8 * depth * _first_tuple(job_address, batch, place)
    done = 0
    while done < count:
        stretch = count if own else min(tuples - place, count - done)
        first = _first_tuple(job_address, batch, place)
        widen_components(job.index_type, job.indices, first * depth, stretch * depth, block + 8 * done * depth)
        done += stretch
        place = 0
        batch += 1
    return block


def _address_writer(depth: int) -> Callable[[Address, Address, int, Address, Address, Address], int]:
    """Build a loop that writes the slice addresses for tuples of `depth` components.

    `origin` is the address of the first tuple's batch. The loop returns a negative number if any component is invalid:
    for each component, it combines the sign of the index with the sign of its distance to the last valid index.
    """

    @inner
    def loop(
        job_address: Address, components: Address, count: int, origin: Address, bases: Address, addresses: Address
    ) -> int:
        job = gather_job_at(job_address)
        sizes, width, wrap = job.sizes, job.width, job.wrap
        signs = 0
        for t in range(count):
            number = 0
            for axis in range(depth):  # LLVM unrolls this loop, because the depth is a constant
                size = load_invariant(sizes, axis)
                index = load_item(components, depth * t + axis)
                index += (index >> 63) & (size if wrap else 0)
                signs |= index | (size - 1 - index)
                number = number * size + index
            store_item(addresses, t, origin + load_item(bases, t) + number * width)
        return signs

    return loop


_write_depth_1: Final = _address_writer(1)
_write_depth_2: Final = _address_writer(2)
_write_depth_3: Final = _address_writer(3)
_write_depth_4: Final = _address_writer(4)
_write_depth_5: Final = _address_writer(5)


@inlined
def _write_block(
    job_address: Address, components: Address, count: int, origin: Address, bases: Address, addresses: Address
) -> int:
    """Run the `_address_writer` loop for the job's depth. Deeper tuples are processed axis by axis, in vectors."""
    job = gather_job_at(job_address)
    depth = job.depth
    if depth == 1:
        return _write_depth_1(job_address, components, count, origin, bases, addresses)
    if depth == 2:
        return _write_depth_2(job_address, components, count, origin, bases, addresses)
    if depth == 3:
        return _write_depth_3(job_address, components, count, origin, bases, addresses)
    if depth == 4:
        return _write_depth_4(job_address, components, count, origin, bases, addresses)
    if depth == 5:
        return _write_depth_5(job_address, components, count, origin, bases, addresses)
    signs = 0
    for t in range(count):
        store_item(addresses, t, 0)
    for axis in range(depth):
        size = load_item(job.sizes, axis)
        added = size if job.wrap else 0
        for t in range(count):
            index = load_item(components, depth * t + axis)
            index += (index >> 63) & added
            signs |= index | (size - 1 - index)
            store_item(addresses, t, load_item(addresses, t) * size + index)
    for t in range(count):
        store_item(addresses, t, origin + load_item(bases, t) + load_item(addresses, t) * job.width)
    return signs


@inner
def _fill_bad_tuples(components: Address, count: int, job_address: Address, addresses: Address) -> None:
    """Let each of the `count` tuples that has an invalid component select the slice `fill`. Count the invalid
    components.
    """
    job = gather_job_at(job_address)
    replaced = 0
    for t in range(count):
        before = replaced
        for axis in range(job.depth):
            index, size = load_item(components, t * job.depth + axis), load_item(job.sizes, axis)
            if index >= size or index < (-size if job.wrap else 0):
                replaced += 1
        if replaced > before:
            store_item(addresses, t, job.fill)
    add_atomically(job.replaced, replaced)
