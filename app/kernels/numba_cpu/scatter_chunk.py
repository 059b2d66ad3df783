"""A chunk of a scatter, compiled by Numba: the copy of its stretch of data, and the updates whose targets lie there.

It goes over the indices in blocks: it checks a block and writes the places of its targets, keeps those that are its own
with their updates, and applies these (`combine_slices`). The place of a slice is its address, that of a single item its
number among the items of the output (`combine_single_items`). Entries that are such numbers as they are given are
checked as they are applied, without a block of places in between (`_apply_entries`). Where entries of ScatterElements
can name items of their own stretch only, it takes a piece of that at a time, which a cache holds from its copy on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.kernels.numba_cpu.combine_single_items import (
    ALL_NUMBERS,
    SPARE_ITEMS,
    are_single_items,
    can_be_set_aside,
    combine_own_items,
    combine_single_items,
    has_own_items,
)
from app.kernels.numba_cpu.combine_slices import combine_slices
from app.kernels.numba_cpu.element_places import (
    enter_row,
    first_bad_entry,
    next_row,
    write_entry_places,
    write_numbers,
    write_rows_places,
)
from app.kernels.numba_cpu.gather_job import (
    AXES,
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
    LINE,
    MASK_BITS,
    Copy,
    clear,
    copy_1,
    copy_2,
    copy_4,
    copy_8,
    load_item,
    mask_inside,
    memcpy,
    prefetch,
    prefetch_to_write,
    stack_scratch,
    store_item,
)
from app.kernels.numba_cpu.reductions import COPY_ROWS, ITEM_COPIES
from app.kernels.numba_cpu.widen_indices import MAX_DEPTH, widen_components
from app.kernels.numba_cpu.write_offsets import first_bad_component, write_block_offsets
from app.kernels.numba_cpu.write_rows_once import (
    NOTES,
    UPDATES,
    begin_pieces,
    count_pieces,
    note_last_tuples,
    piece_shift,
    place_pieces,
    reduce_rows_once,
    sort_into_pieces,
    write_rows_once,
)
from app.llvm_intrinsics import Address, count_trailing_zeros, inlined, inner, int64, stack_words
from app.operators.scatter_plan import GATHERED_BYTES

# Fields of the job that say something else here than in a gather. TOTAL and CHUNK_SIZE count units of the output,
# STRIDE is the bytes of one; WIDTH is the bytes of an update; START is the code for `combine_slices`.
# UPDATES has the address of the updates; NOTES, in place of STRIDE, that of notes where each row is written once, and
# of columns the memory to gather them in, or 0.
# AXES has the address of DEPTH sizes, then the items of a slice and those that `combine_slices` counts; of
# ScatterElements the sizes of indices, as many steps in items of the output, the size of the axis and its step.

# What FLAGS is made of, beside what a gather has.
ELEMENTS: Final = 32
"""ScatterElements."""
OUTER: Final = 64
"""Each unit has entries of its own: those of one place along the first axis of indices."""
COLUMNS: Final = 128
"""A unit is a column: the entries of one place along the last axis name items of it, which follow one another at the
step of the axis."""
ONCE: Final = 256
"""Each row is written once (`write_rows_once`), from the notes that have been made."""
NOTING: Final = 512
"""Beside ONCE: the one chunk makes the notes, and writes nothing of the output."""
SORTING: Final = 1024
"""Beside NOTING, with a reduction: tuples are sorted, after they have been counted."""
CODE_BITS: Final = 11
"""Bits below the type of the entries."""
INDEX_KIND: Final = 64
"""Added to that type (`ndarray_abi.index_type`), which may be negative."""

PIECE_BYTES: Final = 1 << 17
"""Bytes of OUTER units that are copied, and then scattered into, at a time: less than a second cache has."""
_ROWS_AHEAD: Final = 4
"""How many rows before it is used a piece of one is asked for: no processor does so from one row to the next."""

_LEAST_DIRECT_ROW: Final = 32
"""Entries of a row, from which on each row is gone over by itself rather than as a part of a block."""

_spare_items: Final = stack_words(SPARE_ITEMS)

_entries_scratch: Final = stack_words(BLOCK + MAX_DEPTH)


def scatter_chunk(job: Address, number: int) -> int:
    """Chunk `number` of a job: its first bad component, or -1."""
    low = number * load_item(job, CHUNK_SIZE)
    high = min(low + load_item(job, CHUNK_SIZE), load_item(job, TOTAL))
    flags, unit = load_item(job, FLAGS), load_item(job, STRIDE)
    if flags & COLUMNS != 0:
        return _scatter_columns(job, number, low, high)
    noting = flags & NOTING != 0
    if flags & ONCE != 0 and not noting:
        if load_item(job, START) <= COPY_ROWS:
            write_rows_once(job, low, high)
        else:
            reduce_rows_once(job, low, high)
        return -1
    piece = high - low
    if flags & OUTER != 0:
        piece = max(1, PIECE_BYTES // unit)
    bad = -1
    while bad < 0:
        upto = min(low + piece, high)
        if noting:
            _begin_notes(job, high)
        elif upto > low:
            memcpy(load_item(job, OUTPUT) + low * unit, load_item(job, DATA) + low * unit, (upto - low) * unit)
        bad = _scatter_elements(job, low, upto) if flags & ELEMENTS != 0 else _scatter_nd(job, low, upto)
        if noting and _has_counted(job):
            continue
        low = upto
        if low >= high:
            break
    return bad


@inner
def _begin_notes(job: Address, rows: int) -> None:
    """Prepare the notes for the tuples that are gone over next."""
    notes = load_item(job, NOTES)
    if load_item(job, START) <= COPY_ROWS:
        clear(notes, 4 * rows)
    elif load_item(job, FLAGS) & SORTING == 0:
        begin_pieces(notes, rows, piece_shift(load_item(job, WIDTH)))
    else:
        place_pieces(notes, rows, piece_shift(load_item(job, WIDTH)))


@inner
def _has_counted(job: Address) -> bool:
    """Whether the tuples have only been counted by now: they are to be sorted next."""
    flags = load_item(job, FLAGS)
    if load_item(job, START) <= COPY_ROWS or flags & SORTING != 0:
        return False
    store_item(job, FLAGS, flags | SORTING)
    return True


@inner
def _scatter_nd(job: Address, low: int, high: int) -> int:
    """Apply the updates of tuples that name slices [low, high), or note all tuples (NOTING)."""
    components, axes, depth = load_item(job, COMPONENTS), load_item(job, AXES), load_item(job, DEPTH)
    tuples, slices, flags = load_item(job, TUPLES), load_item(job, TOTAL), load_item(job, FLAGS)
    items = load_item(axes, depth + 1)
    origin, step = _origin_and_step(job, items)
    noting = flags & NOTING != 0
    if noting:
        origin, step = 0, 1
    numbered = noting or are_single_items(load_item(job, START), items)
    direct = numbered and depth == 1 and not noting
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
    step_3 = step * size_4
    step_2 = step_3 * size_3
    step_1 = step_2 * size_2
    steps = step_1 * size_1, step_1, step_2, step_3, step
    done = 0
    while done < tuples:
        count = min(BLOCK, tuples - done)
        first = done * depth
        if direct:
            given = components + 8 * done
            bad = _apply_entries(job, targets, given, done, count, int64(0), low, high, size_0, wraps[0])
            if bad >= 0:
                return done + bad
            done += count
            continue
        if numbered and depth == 1:
            signs = write_numbers(targets, int64(0), components + 8 * first, count, size_0, wraps[0])
        else:
            signs = write_block_offsets(
                targets, bases, origin, components, first, count, lasts, wraps, steps, depth, axes, wrap, slices * step
            )
        if signs < 0:
            bad = first_bad_component(components, first, count, depth, axes, wrap)
            if bad >= 0:
                return bad
        if noting and load_item(job, START) <= COPY_ROWS:
            note_last_tuples(load_item(job, NOTES), targets, done, count)
        elif noting and flags & SORTING == 0:
            count_pieces(load_item(job, NOTES), targets, count, piece_shift(load_item(job, WIDTH)))
        elif noting:
            shift = piece_shift(load_item(job, WIDTH))
            sort_into_pieces(load_item(job, NOTES), slices, targets, done, count, shift)
        else:
            _apply(job, targets, done, count, origin + low * step, origin + high * step, items)
        done += count
    return -1


@inner
def _scatter_elements(job: Address, low: int, high: int) -> int:
    """Apply the updates that name items of the units [low, high) of the output.

    The scratch memories have the places of the targets of a block, and their updates; the entries of a block where they
    have to be widened, and the place along each axis of the entry that comes next.
    """
    components, axes, depth = load_item(job, COMPONENTS), load_item(job, AXES), load_item(job, DEPTH)
    flags, unit = load_item(job, FLAGS), load_item(job, STRIDE) // load_item(job, WIDTH)
    target, step = _origin_and_step(job, 1)
    kind = (flags >> CODE_BITS) - INDEX_KIND
    axis_size, axis_step = load_item(axes, 2 * depth), load_item(axes, 2 * depth + 1) * step
    wrapped = axis_size if flags & WRAP_NEGATIVE != 0 else 0
    done, end = 0, load_item(job, TUPLES)
    begin, stop = target + low * unit * step, target + high * unit * step
    if flags & OUTER != 0:
        outer = load_item(axes, 0)
        inside = end // outer
        done, end = min(low, outer) * inside, min(high, outer) * inside
    if done >= end:
        return -1
    targets = stack_scratch()
    entries = _entries_scratch()
    places = entries + 8 * BLOCK
    row_number = done // load_item(axes, depth - 1)
    column = done - row_number * load_item(axes, depth - 1)
    # The place of the item that an entry of 0 at the beginning of the row would name.
    origin = target + enter_row(axes, places, depth, row_number, step)
    row = load_item(axes, depth - 1)
    are_close = load_item(axes, 2 * depth - 1) == 0 and axis_step == 1
    direct = are_close and row >= _LEAST_DIRECT_ROW and are_single_items(load_item(job, START), 1)
    while done < end:
        count = min(BLOCK, end - done)
        if direct:
            count = min(count, row - column)
        given = components + 8 * done
        if kind != 8:
            widen_components(kind, components, done, count, entries)
            given = entries
        if direct:
            bad = _apply_entries(job, targets, given, done, count, origin, begin, stop, axis_size, wrapped)
            if bad >= 0:
                return done + bad
            done += count
            column += count
            if column == row:
                column = 0
                origin += next_row(axes, places, depth)
            continue
        signs, origin, column = write_rows_places(
            targets, origin, column, axes, places, depth, step, given, count, axis_size, wrapped, axis_step
        )
        if signs < 0:
            return done + first_bad_entry(given, count, axis_size, wrapped)
        _apply(job, targets, done, count, begin, stop, int64(1))
        done += count
    return -1


@inner
def _scatter_columns(job: Address, number: int, low: int, high: int) -> int:
    """Copy the columns [low, high) and apply the updates to them, of at most BLOCK columns at a time.

    Where chunk `number` has memory at NOTES, as many as fit are gathered there, and copied from there when all updates
    have been applied: items of a column of the output may lie at addresses of which a cache holds few.
    """
    output, data, components = load_item(job, OUTPUT), load_item(job, DATA), load_item(job, COMPONENTS)
    axes, width, flags = load_item(job, AXES), load_item(job, WIDTH), load_item(job, FLAGS)
    kind = (flags >> CODE_BITS) - INDEX_KIND
    index_rows, row = load_item(axes, 0), load_item(axes, 1)
    rows, row_step = load_item(axes, 4), load_item(axes, 5) * width
    wrapped = rows if flags & WRAP_NEGATIVE != 0 else 0
    code = load_item(job, START)
    single = are_single_items(code, 1)
    targets = stack_scratch()
    kept = targets + 8 * BLOCK
    entries = _entries_scratch()
    gathered = load_item(job, NOTES)
    most = BLOCK
    if gathered != 0:
        gathered += number * GATHERED_BYTES
        most = min(BLOCK, GATHERED_BYTES // (rows * LINE) * (LINE // width))
    bad = -1
    while low < high:
        upto = min(low + most, high)
        piece, count = (upto - low) * width, min(upto, row) - low
        begin, step = output + low * width, row_step
        if gathered != 0 and count > 0:
            begin, step = gathered, piece
        for r in range(rows):
            source = data + r * row_step + low * width
            _prefetch_piece(source + _ROWS_AHEAD * row_step, piece)
            memcpy(begin + r * step, source, piece)
        for r in range(index_rows if count > 0 else 0):
            first = r * row + low
            ahead = first + _ROWS_AHEAD * row
            _prefetch_piece(components + ahead * abs(kind), count * abs(kind))
            _prefetch_piece(load_item(job, UPDATES) + ahead * width, count * width)
            given = components + 8 * first
            if kind != 8:
                widen_components(kind, components, first, count, entries)
                given = entries
            origin, item, place_step = (0, 1, step // width) if single else (begin, width, step)
            if write_entry_places(targets, origin, item, given, count, rows, wrapped, place_step) < 0:
                found = first + first_bad_entry(given, count, rows, wrapped)
                if bad < 0 or found < bad:
                    bad = found
                break
            updates = load_item(job, UPDATES) + first * width
            if code < ITEM_COPIES:
                for t in range(count):
                    prefetch_to_write(begin + load_item(targets, t) * width)
            if single:
                combine_single_items(code, begin, targets, updates, count, int64(ALL_NUMBERS))
            else:
                for t in range(count):
                    store_item(kept, t, updates + t * width)
                combine_slices(code, targets, kept, count, int64(1))
        if gathered != 0 and count > 0:
            for r in range(rows):
                memcpy(output + r * row_step + low * width, gathered + r * piece, piece)
        low = upto
    return bad


@inlined
def _prefetch_piece(address: Address, size: int) -> None:
    """Ask for so many bytes, which need not be mapped."""
    for line in range(0, size, LINE):
        prefetch(address + line)


@inlined
def _origin_and_step(job: Address, items: int) -> tuple[int, int]:
    """The place of the first slice of the output, and from one to the next."""
    if are_single_items(load_item(job, START), items):
        return 0, 1
    return load_item(job, OUTPUT), load_item(job, WIDTH)


@inner
def _is_whole(job: Address) -> bool:
    """Whether all targets that a chunk comes across are its own."""
    return load_item(job, FLAGS) & OUTER != 0 or load_item(job, CHUNK_SIZE) >= load_item(job, TOTAL)


@inlined
def _may_be_one_place(entries: Address, count: int) -> bool:
    """Whether all of so many entries may be the same, for which `combine_single_items` has a faster loop."""
    return count > 1 and load_item(entries, 0) == load_item(entries, count - 1)


@inner
def _apply_entries(
    job: Address,
    targets: Address,
    entries: Address,
    first: int,
    count: int,
    origin: int,
    begin: int,
    end: int,
    size: int,
    wrapped: int,
) -> int:
    """Check `count` entries, and apply those of their updates, from number `first` on, whose targets lie in [begin,
    end): the first bad entry, or -1. Entry 0 names item number `origin` of the output.

    An entry that is not negative is a number already, from there on, and is checked when it is applied. To check whole
    blocks before took half as long again, for it keeps the processor from going on with the next one meanwhile.
    """
    code, width = load_item(job, START), load_item(job, WIDTH)
    base, updates = load_item(job, OUTPUT) + origin * width, load_item(job, UPDATES) + first * width
    spare, done = _spare_items(), 0
    if size > 0 and load_item(job, FLAGS) & NOT_AHEAD == 0:
        for t in range(count):
            prefetch(base + load_item(entries, t) * width)
    if size > 0 and _is_whole(job):
        done = combine_single_items(code, base, entries, updates, count, size - 1)
    elif size > 0 and has_own_items(code) and (spare - base) % width == 0 and not _may_be_one_place(entries, count):
        spare = (spare - base) // width
        done = combine_own_items(code, base, entries, updates, count, size - 1, begin - origin, end - begin, spare)
    if done == count:
        return -1
    rest = entries + 8 * done
    if write_numbers(targets, origin, rest, count - done, size, wrapped) < 0:
        return done + first_bad_entry(rest, count - done, size, wrapped)
    _apply(job, targets, first + done, count - done, begin, end, int64(1))
    return -1


@inner
def _apply(job: Address, targets: Address, first: int, count: int, begin: int, end: int, items: int) -> None:
    """Apply, in their order, those of `count` updates from number `first` on whose targets lie in [begin, end).

    Where a chunk has entries of its own all of them lie there.
    """
    width, code, flags = load_item(job, WIDTH), load_item(job, START), load_item(job, FLAGS)
    output, update = load_item(job, OUTPUT), load_item(job, UPDATES) + first * width
    kept = targets + 8 * BLOCK
    is_whole = _is_whole(job)
    if are_single_items(code, items):
        spare = _spare_items()
        if not is_whole and can_be_set_aside(code) and (spare - output) % width == 0:
            _set_aside(targets, count, begin, end, (spare - output) // width)
        elif not is_whole:
            count = _keep_items(targets, update, kept, count, width, begin, end - begin)
            update = kept
        if flags & NOT_AHEAD == 0:
            for t in range(count):
                prefetch(output + load_item(targets, t) * width)
        combine_single_items(code, output, targets, update, count, int64(ALL_NUMBERS))
        return
    if is_whole:
        for t in range(count):
            store_item(kept, t, update + t * width)
    else:
        count = _keep_addresses(targets, update, kept, count, width, begin, end - begin)
    if flags & NOT_AHEAD == 0:
        for t in range(count):
            prefetch(load_item(targets, t))
    combine_slices(code, targets, kept, count, items)


@inner
def _set_aside(numbers: Address, count: int, begin: int, end: int, spare: int) -> None:
    """Replace those of `count` numbers that are not in [begin, end) by those of spare items."""
    for t in range(count):
        number = load_item(numbers, t)
        outside = ((number - begin) | (end - 1 - number)) >> 63  # all bits or none
        store_item(numbers, t, number ^ ((number ^ (spare + (t & (SPARE_ITEMS - 1)))) & outside))


def _keeper(keep: Copy, kept_bytes: int) -> Callable[[Address, Address, Address, int, int, Address, int], int]:
    """A loop that moves the targets in a span to the front, and what `keep` makes of their updates to `kept`: how many
    there are. Those take `kept_bytes` each.
    """

    @inlined
    def loop(
        targets: Address, update: Address, kept: Address, count: int, width: int, begin: Address, span: int
    ) -> int:
        found = 0
        for first in range(0, count, MASK_BITS):
            inside = mask_inside(targets + 8 * first, begin, span)
            if count - first < MASK_BITS:
                inside &= (1 << (count - first)) - 1
            while inside != 0:
                t = first + count_trailing_zeros(inside)
                inside &= inside - 1
                store_item(targets, found, load_item(targets, t))
                keep(kept + kept_bytes * found, update + width * t)
                found += 1
        return found

    return loop


@inlined
def _keep_address(target: Address, source: Address) -> None:
    store_item(target, 0, source)


_keep_1: Final = _keeper(copy_1, 1)
_keep_2: Final = _keeper(copy_2, 2)
_keep_4: Final = _keeper(copy_4, 4)
_keep_8: Final = _keeper(copy_8, 8)
_keep_addresses: Final = _keeper(_keep_address, 8)


@inner
def _keep_items(
    targets: Address, update: Address, kept: Address, count: int, width: int, begin: Address, span: int
) -> int:
    """The loop of `_keeper` for single updates of 1, 2, 4 or 8 bytes."""
    if width == 1:
        return _keep_1(targets, update, kept, count, width, begin, span)
    if width == 2:
        return _keep_2(targets, update, kept, count, width, begin, span)
    if width == 4:
        return _keep_4(targets, update, kept, count, width, begin, span)
    return _keep_8(targets, update, kept, count, width, begin, span)
