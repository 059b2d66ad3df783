"""The job: what a gather's owner writes down, in int64, for those that take its chunks."""

from __future__ import annotations

from typing import Final

from app.kernels.numba_cpu.memory_intrinsics import SCRATCH_ITEMS, store_item
from app.llvm_intrinsics import Address, inlined

BLOCK: Final = SCRATCH_ITEMS // 3
"""Most tuples that are checked and copied at a time, 256; chunks begin with a batch where a batch has fewer.

Blocks of 64 or 128 cost more for each block than the waits that they hide.
"""

# Fields of a job, the description of a gather in int64.
DATA: Final = 0
"""The addresses of data, output, components of the indices, and sizes of the indexed axes, int64."""
OUTPUT: Final = 1
COMPONENTS: Final = 2
AXES: Final = 3
DEPTH: Final = 4
BATCHES: Final = 5
TUPLES: Final = 6
"""Tuples of a batch."""
WIDTH: Final = 7
"""Bytes of a slice."""
STRIDE: Final = 8
"""Bytes of a batch of data."""
TOTAL: Final = 9
"""Tuples that are divided into chunks, or batches."""
CHUNK_SIZE: Final = 10
CHUNKS: Final = 11
FLAGS: Final = 12
START: Final = 13
"""The first tuple of chunk 0."""
BATCHES_PER_SET: Final = START
"""In its place, for `gather_narrow_chunk`: how many consecutive batches use the same tuples, 0 where each has its own
or all use the one set."""
INDEX_TYPE: Final = 14
"""Of the components; int64 for `gather_chunk`. See `ndarray_abi.index_type`."""
OWN_INDEX_TYPE: Final = 0
"""In its place: GATHER_CHUNK reads components of any type."""
REPEATED_INT64: Final = 16
"""In its place: the components are int64, and `gather_narrow_chunk` repeats them for the batches of a set."""
GATHER_CHUNK: Final = 15
"""The address of `gather_chunk`, or of another operator's function for its chunks."""
JOB_ITEMS: Final = 16

# What FLAGS is made of.
NOT_AHEAD: Final = 1
"""Slices are not asked for ahead: caches hold the data, or the processor does it better by itself."""
BROADCAST_INDICES: Final = 2
"""All batches have the same tuples."""
WRAP_NEGATIVE: Final = 4
"""Negative components count from the end."""
NONTEMPORAL: Final = 8
"""Caches do not hold the output: it is stored past them."""
WHOLE_BATCHES: Final = 16
"""TOTAL and CHUNK_SIZE count batches rather than tuples."""
FILLS: Final = 32
"""A tuple out of bounds picks the slice to fill with. Behind the sizes at AXES are the address of that, and that of the
count of components out of bounds. No two batches use the same tuples."""


@inlined
def write_job(
    job: Address,
    addresses: tuple[Address, Address, Address, Address],
    depth: int,
    width: int,
    total: int,
    chunk_size: int,
    flags: int,
    gather_chunk: Address,
) -> None:
    """Write the fields that mean the same to every operator; `addresses` are of data, output, indices and axes."""
    store_item(job, DATA, addresses[0])
    store_item(job, OUTPUT, addresses[1])
    store_item(job, COMPONENTS, addresses[2])
    store_item(job, AXES, addresses[3])
    store_item(job, DEPTH, depth)
    store_item(job, WIDTH, width)
    store_item(job, TOTAL, total)
    store_item(job, CHUNK_SIZE, chunk_size)
    store_item(job, FLAGS, flags)
    store_item(job, GATHER_CHUNK, gather_chunk)
