"""The jobs of scatters, gradients and lookups, in int64; `shared_job.Job` has the fields that every job begins with."""

from __future__ import annotations

from typing import Final

from app.kernels.numba_cpu.memory_intrinsics import store_item
from app.llvm_intrinsics import Address, inlined

BLOCK: Final = 256
"""Most tuples that are checked at a time."""

# Fields of a job of scatters and gradients, in int64, the first of which are those of `shared_job.Job`.
GATHER_CHUNK: Final = 0
"""The address of the operator's function for its chunks."""
TOTAL: Final = 1
"""Tuples that are divided into chunks, or batches."""
CHUNK_SIZE: Final = 2
CHUNKS: Final = 3
DATA: Final = 4
"""The addresses of data, output, components of the indices, and sizes of the indexed axes, int64."""
OUTPUT: Final = 5
COMPONENTS: Final = 6
AXES: Final = 7
DEPTH: Final = 8
BATCHES: Final = 9
TUPLES: Final = 10
"""Tuples of a batch."""
WIDTH: Final = 11
"""Bytes of a slice."""
STRIDE: Final = 12
"""Bytes of a batch of data."""
FLAGS: Final = 13
START: Final = 14
"""The first tuple of chunk 0."""
INDEX_TYPE: Final = 15
OWN_INDEX_TYPE: Final = 0
"""Each function for chunks reads indices of any type."""
JOB_ITEMS: Final = 16

# What FLAGS is made of.
NOT_AHEAD: Final = 1
"""Slices are not asked for ahead: caches hold the data, or the processor does it better by itself."""
WRAP_NEGATIVE: Final = 4
"""Negative components count from the end."""
NONTEMPORAL: Final = 8
"""Caches do not hold the output: it is stored past them."""


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
