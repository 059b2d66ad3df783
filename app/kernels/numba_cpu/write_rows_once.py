"""Scatters of rows that write each row of the output once.

To copy data first and to write rows over it, or to reduce updates into them, afterwards moves the rows that updates
name through memory twice. So one thread goes over all tuples first and makes notes of them; then chunks write their
rows one behind the other.

Without a reduction the notes have for each row the last tuple that names it, counted from 1, or 0 for none
(`note_last_tuples`): each row is copied from the update of that tuple, or from data.

With one, tuples are sorted by the piece of the output that they name a row of, in their order (`count_pieces`,
`sort_into_pieces`): each piece is copied from data into a buffer in the first cache, its updates are reduced into it,
and it is written to the output. Notes are numbers of 32 bits: where the tuples of each piece end, and behind these for
each tuple, as it is sorted, its own number and that of its row.
"""

from __future__ import annotations

from typing import Final

from app.kernels.numba_cpu.combine_slices import combine_slices
from app.kernels.numba_cpu.copy_slices import copy_rows, copy_rows_nontemporal
from app.kernels.numba_cpu.gather_job import (
    AXES,
    BATCHES,
    BLOCK,
    DATA,
    DEPTH,
    FLAGS,
    NONTEMPORAL,
    OUTPUT,
    START,
    STRIDE,
    TOTAL,
    WIDTH,
)
from app.kernels.numba_cpu.memory_intrinsics import (
    LINE,
    aligned_line,
    clear,
    copy_line_nontemporal,
    fence,
    load_item,
    memcpy,
    prefetch,
    stack_scratch,
    store_item,
)
from app.llvm_intrinsics import Address, inlined, inner, load_u32, stack_words, store_u32
from app.operators.scatter_plan import PIECE_BYTES

UPDATES: Final = BATCHES
"""The address of the updates, in a scatter's job."""
NOTES: Final = STRIDE
"""The address of the notes, in place of the bytes of a unit, which are those of a row (WIDTH)."""

_ROWS_AHEAD: Final = 16
_ROW_BYTES_AHEAD: Final = 4096
"""As in `gather_chunk`."""
_UPDATES_AHEAD: Final = 32
"""How many updates before it is reduced one is asked for."""
_LINES_AHEAD: Final = 16
"""Lines of it that are; where it has more, the processor does so by itself."""

_buffer: Final = stack_words((PIECE_BYTES + 2 * LINE) // 8)


@inner
def note_last_tuples(notes: Address, numbers: Address, first: int, count: int) -> None:
    """Note `count` tuples from number `first` on at the rows whose numbers are at `numbers`."""
    for t in range(count):
        store_u32(notes + 4 * load_item(numbers, t), first + t + 1)


@inner
def piece_shift(width: int) -> int:
    """The logarithm of the rows of a piece, of so many bytes each."""
    shift = 0
    while width << (shift + 1) <= PIECE_BYTES:
        shift += 1
    return shift


@inlined
def sorted_tuples(rows: int, shift: int) -> int:
    """Where the sorted tuples begin among the notes, in bytes: a multiple of 8."""
    return 8 * ((((rows - 1) >> shift) + 2) // 2)


@inner
def begin_pieces(notes: Address, rows: int, shift: int) -> None:
    """No piece has a tuple."""
    clear(notes, sorted_tuples(rows, shift))


@inner
def count_pieces(notes: Address, numbers: Address, count: int, shift: int) -> None:
    """Count the tuples of each piece."""
    for t in range(count):
        place = notes + 4 * (load_item(numbers, t) >> shift)
        store_u32(place, load_u32(place) + 1)


@inner
def place_pieces(notes: Address, rows: int, shift: int) -> None:
    """Where the tuples of each piece begin, in place of how many there are."""
    total = 0
    for piece in range(((rows - 1) >> shift) + 1):
        count = load_u32(notes + 4 * piece)
        store_u32(notes + 4 * piece, total)
        total += count


@inner
def sort_into_pieces(notes: Address, rows: int, numbers: Address, first: int, count: int, shift: int) -> None:
    """Write `count` tuples from number `first` on behind those before them of the same pieces."""
    pairs = notes + sorted_tuples(rows, shift)
    for t in range(count):
        row = load_item(numbers, t)
        place = notes + 4 * (row >> shift)
        at = load_u32(place)
        store_item(pairs, at, row << 32 | (first + t))
        store_u32(place, at + 1)


@inner
def reduce_rows_once(job: Address, low: int, high: int) -> None:
    """Write the rows [low, high) of the output, with the updates that name them; `low` begins a piece."""
    data, updates, notes = load_item(job, DATA), load_item(job, UPDATES), load_item(job, NOTES)
    output, width, code = load_item(job, OUTPUT), load_item(job, WIDTH), load_item(job, START)
    items = load_item(load_item(job, AXES), load_item(job, DEPTH) + 1)
    nontemporal = load_item(job, FLAGS) & NONTEMPORAL != 0
    shift = piece_shift(width)
    pairs = notes + sorted_tuples(load_item(job, TOTAL), shift)
    lines = min(width, _LINES_AHEAD * LINE)
    room = (_buffer() + LINE - 1) & -LINE
    targets = stack_scratch()
    sources = targets + 8 * BLOCK
    done = 0 if low == 0 else load_u32(notes + 4 * ((low >> shift) - 1))
    last = load_u32(notes + 4 * ((high - 1) >> shift)) - 1  # of the tuples of this chunk
    while low < high:
        upto = min(low + (1 << shift), high)
        place, size = output + low * width, (upto - low) * width
        buffer = room + (place & (LINE - 1))
        memcpy(buffer, data + low * width, size)
        end = load_u32(notes + 4 * (low >> shift))
        while done < end:
            count = min(BLOCK, end - done)
            for t in range(count):
                later = updates + (load_item(pairs, min(done + t + _UPDATES_AHEAD, last)) & 0xFFFFFFFF) * width
                for line in range(0, lines, LINE):
                    prefetch(later + line)
                pair = load_item(pairs, done + t)
                store_item(targets, t, buffer + ((pair >> 32) - low) * width)
                store_item(sources, t, updates + (pair & 0xFFFFFFFF) * width)
            combine_slices(code, targets, sources, count, items)
            done += count
        if nontemporal:
            _copy_past_caches(place, buffer, size)
        else:
            memcpy(place, buffer, size)
        low = upto
    if nontemporal:
        fence()


@inner
def _copy_past_caches(target: Address, source: Address, size: int) -> None:
    """Copy so many bytes, whole lines of them past the caches."""
    end = target + size
    line = min((target + LINE - 1) & -LINE, end)
    memcpy(target, source, line - target)
    source -= target
    while line <= end - LINE:
        copy_line_nontemporal(line, source + line)
        line += LINE
    memcpy(line, source + line, end - line)


@inner
def write_rows_once(job: Address, low: int, high: int) -> None:
    """Write the rows [low, high) of the output, of a cache line or more each."""
    data, updates, notes = load_item(job, DATA), load_item(job, UPDATES), load_item(job, NOTES)
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
