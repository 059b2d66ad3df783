"""Scatters without a reduction that write each row of the output once, from data or from an update.

To copy data first and to write rows over it afterwards moves the rows that updates name through memory twice. So one
thread goes over all tuples first and notes for each row which of them names it last (`note_last_tuples`); then chunks
write their rows one behind the other, each from the update of that tuple, or from data where there is none.

The notes are numbers of 32 bits, one for each row of the output: of tuples counted from 1, and 0 for none.
"""

from __future__ import annotations

from typing import Final

from app.kernels.numba_cpu.copy_slices import copy_rows, copy_rows_nontemporal
from app.kernels.numba_cpu.gather_job import (
    BATCHES,
    BLOCK,
    DATA,
    FLAGS,
    NONTEMPORAL,
    OUTPUT,
    STRIDE,
    WIDTH,
)
from app.kernels.numba_cpu.memory_intrinsics import aligned_line, fence, load_item, stack_scratch, store_item
from app.llvm_intrinsics import Address, inner, load_u32, store_u32

UPDATES: Final = BATCHES
"""The address of the updates, in a scatter's job."""
LAST_TUPLES: Final = STRIDE
"""The address of the notes, in place of the bytes of a unit, which are those of a row (WIDTH)."""

_ROWS_AHEAD: Final = 16
_ROW_BYTES_AHEAD: Final = 4096
"""As in `gather_chunk`."""


@inner
def note_last_tuples(notes: Address, numbers: Address, first: int, count: int) -> None:
    """Note `count` tuples from number `first` on at the rows whose numbers are at `numbers`."""
    for t in range(count):
        store_u32(notes + 4 * load_item(numbers, t), first + t + 1)


@inner
def write_rows_once(job: Address, low: int, high: int) -> None:
    """Write the rows [low, high) of the output, of a cache line or more each."""
    data, updates, notes = load_item(job, DATA), load_item(job, UPDATES), load_item(job, LAST_TUPLES)
    width = load_item(job, WIDTH)
    nontemporal = load_item(job, FLAGS) & NONTEMPORAL != 0
    ahead = max(1, min(_ROWS_AHEAD, _ROW_BYTES_AHEAD // width))
    sources, joint = stack_scratch(), aligned_line()
    place = load_item(job, OUTPUT) + low * width
    count = 0  # rows of the block in hand
    while True:
        # Write the addresses for the next block behind those of the block in hand.
        more = min(BLOCK, high - low)
        for t in range(more):
            tuple_ = load_u32(notes + 4 * (low + t))
            store_item(sources, count + t, updates + (tuple_ - 1) * width if tuple_ != 0 else data + (low + t) * width)
        low += more
        for t in range(count + more, count + ahead):
            # There is nothing more to ask for: what is copied last is asked for again.
            store_item(sources, t, load_item(sources, t - 1) if t > 0 else data)
        if count > 0:
            if nontemporal:
                copy_rows_nontemporal(place, sources, count, ahead, width, joint)
            else:
                copy_rows(place, sources, count, ahead, width)
            place += count * width
        if more == 0:
            break
        for t in range(more):
            store_item(sources, t, load_item(sources, count + t))
        count = more
    if nontemporal:
        fence()
