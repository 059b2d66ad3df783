"""A chunk of a gather, compiled by Numba: what a CPU does for most of its time here.

It goes over the tuples of indices in blocks. Component by component it checks a block and adds up its offsets, in
vector registers; while it copies the slices of one block it asks for the memory that the next one needs, so that the
waits overlap. Slices are so many bytes, of whatever type. `write_offsets(depth)` and `copy_slices(width)` make the
loops for tuples of up to five components and for slices of one store; deeper tuples and other widths have one each.

Figures that stand here were measured as `benchmarks/README.md` says, under "CPU kernel: what was tried".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from app.kernels.numba_cpu.memory_intrinsics import (
    LINE,
    SCRATCH_ITEMS,
    Copy,
    aligned_line,
    copy_1,
    copy_2,
    copy_4,
    copy_8,
    copy_16,
    copy_32,
    copy_64,
    copy_line_nontemporal,
    fence,
    load_invariant,
    load_item,
    memcpy,
    prefetch,
    stack_scratch,
    store_item,
)
from app.llvm_intrinsics import Address, inlined, inner, spliced, udiv

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
INDEX_TYPE: Final = 14
"""Of the components; int64 for `gather_chunk`. See `ndarray_abi.index_type`."""
OWN_INDEX_TYPE: Final = 0
"""In its place: GATHER_CHUNK reads components of any type."""
GATHER_CHUNK: Final = 15
"""The address of `gather_chunk`, or of another operator's function for its chunks."""
JOB_ITEMS: Final = 16

# What FLAGS is made of.
DATA_IN_CACHE: Final = 1
"""Caches hold the data: no need to ask for it ahead."""
BROADCAST_INDICES: Final = 2
"""All batches have the same tuples."""
WRAP_NEGATIVE: Final = 4
"""Negative components count from the end."""
NONTEMPORAL: Final = 8
"""Caches do not hold the output: it is stored past them."""
WHOLE_BATCHES: Final = 16
"""TOTAL and CHUNK_SIZE count batches rather than tuples."""

NEIGHBOURS_BYTES: Final = 48
"""From one slice to the next on average, below which they share cache lines, and to ask for each costs a third."""
_ITEMS_AHEAD: Final = 128
"""How many slices before its copy a slice is asked for; measured with `benchmarks.kernels`, as the next two."""
_ROWS_AHEAD: Final = 16
_ROW_BYTES_AHEAD: Final = 4096
"""The same for slices of a line or more: at most so many of them, and so many bytes."""
_MOST_UNROLLED: Final = 5
"""Components of the deepest tuples that have a loop of their own: 100,000 of five took 527 µs without, 217 with."""

Axes: TypeAlias = tuple[int, int, int, int, int]
"""A number for each of the first _MOST_UNROLLED axes."""


def _tuple_offset(depth: int) -> Callable[[Address, int, Axes, Axes, Axes], tuple[int, int]]:
    """A function for the (offset in bytes, sign) of the tuple of `depth` components that begins at component `first`.

    `lasts` are the last good components of the axes, `wraps` is what a negative one needs there, `steps` are the bytes
    from one index to the next. The sign is negative if a component is out of bounds: a bad one makes itself, or its
    distance to the last good one, negative.
    """
    if depth == 0:

        @spliced
        def nothing(components: Address, first: int, lasts: Axes, wraps: Axes, steps: Axes) -> tuple[int, int]:
            return 0, 0

        return nothing

    axis = depth - 1
    offset_before = _tuple_offset(axis)

    @spliced
    def tuple_offset(components: Address, first: int, lasts: Axes, wraps: Axes, steps: Axes) -> tuple[int, int]:
        offset, sign = offset_before(components, first, lasts, wraps, steps)
        index = load_invariant(components, first + axis)
        index += (index >> 63) & wraps[axis]
        return offset + index * steps[axis], sign | (index | (lasts[axis] - index))

    return tuple_offset


WriteOffsets: TypeAlias = Callable[[Address, Address, Address, Address, int, int, Axes, Axes, Axes], int]
"""(target, bases, origin, components, first, count, lasts, wraps, steps)"""


def write_offsets(depth: int) -> WriteOffsets:
    """A loop that writes the addresses of `count` slices to `target`: their sign, negative if a component is bad.

    `origin` is the address of the batch that the first tuple belongs to, `bases` holds for each how much further its
    own batch begins. For the rest see `_tuple_offset`.
    """
    tuple_offset = _tuple_offset(depth)

    @spliced
    def loop(
        target: Address,
        bases: Address,
        origin: Address,
        components: Address,
        first: int,
        count: int,
        lasts: Axes,
        wraps: Axes,
        steps: Axes,
    ) -> int:
        signs = 0
        for t in range(count):
            offset, sign = tuple_offset(components, first + depth * t, lasts, wraps, steps)
            signs |= sign
            store_item(target, t, offset + origin + load_item(bases, t))
        return signs

    return loop


_write_offsets_1: Final = write_offsets(1)
_write_offsets_2: Final = write_offsets(2)
_write_offsets_3: Final = write_offsets(3)
_write_offsets_5: Final = write_offsets(5)


@spliced
def _write_offsets_4(
    target: Address,
    bases: Address,
    origin: Address,
    components: Address,
    first: int,
    count: int,
    lasts: Axes,
    wraps: Axes,
    steps: Axes,
) -> int:
    """`write_offsets(4)` written out: 1,000 tuples take 2.74 µs, and 2.88 in the loop that LLVM makes of that."""
    signs = 0
    for t in range(count):
        a = load_invariant(components, first + 4 * t)
        b = load_invariant(components, first + 4 * t + 1)
        c = load_invariant(components, first + 4 * t + 2)
        d = load_invariant(components, first + 4 * t + 3)
        a += (a >> 63) & wraps[0]
        b += (b >> 63) & wraps[1]
        c += (c >> 63) & wraps[2]
        d += (d >> 63) & wraps[3]
        signs |= a | (lasts[0] - a) | b | (lasts[1] - b) | c | (lasts[2] - c)
        signs |= d | (lasts[3] - d)
        offset = a * steps[0] + b * steps[1] + c * steps[2] + d * steps[3]
        store_item(target, t, offset + origin + load_item(bases, t))
    return signs


@spliced
def _write_offsets_deep(
    target: Address,
    bases: Address,
    origin: Address,
    components: Address,
    first: int,
    count: int,
    depth: int,
    axes: Address,
    wrap: bool,
    stride: int,
) -> int:
    """The same for tuples of any depth: axis by axis, since a loop over a depth that is not known is no vector loop."""
    for t in range(count):
        store_item(target, t, origin + load_item(bases, t))
    signs = 0
    step = stride
    for axis in range(depth):
        size = load_item(axes, axis)
        added = size if wrap else 0
        step = udiv(step, size) if size > 0 else 0
        for t in range(count):
            index = load_invariant(components, first + t * depth + axis)
            index += (index >> 63) & added
            signs |= index | (size - 1 - index)
            store_item(target, t, load_item(target, t) + index * step)
    return signs


@inner
def _first_bad(components: Address, first: int, count: int, depth: int, axes: Address, wrap: bool) -> int:
    """The first component out of bounds of `count` tuples from component `first` on, or -1."""
    at = first
    for _ in range(count):
        for axis in range(depth):
            index, size = load_item(components, at), load_item(axes, axis)
            if index >= size or index < (-size if wrap else 0):
                return at
            at += 1
    return -1


def copy_slices(width: int, copy: Copy) -> Callable[[Address, Address, int, int], None]:
    """A loop that copies `count` slices of `width` bytes from the addresses at `sources` to `target` on.

    It asks for each slice as many before as `ahead` says, which is 0 for none.
    """

    @spliced
    def loop(target: Address, sources: Address, count: int, ahead: int) -> None:
        if ahead > 0:
            for t in range(count):
                prefetch(load_item(sources, t + ahead))
                copy(target + width * t, load_item(sources, t))
        else:
            for t in range(count):
                copy(target + width * t, load_item(sources, t))

    return loop


_copy_slices_1: Final = copy_slices(1, copy_1)
_copy_slices_2: Final = copy_slices(2, copy_2)
_copy_slices_4: Final = copy_slices(4, copy_4)
_copy_slices_8: Final = copy_slices(8, copy_8)
_copy_slices_16: Final = copy_slices(16, copy_16)


@inlined
def _copy_short_slices(target: Address, sources: Address, count: int, ahead: int, width: int) -> None:
    """The same for slices of any width from 3 to 63: two copies each, which overlap.

    LLVM inlines it: spliced into the caller, 200,000 rows of 48 bytes took 10 % longer.
    """
    for t in range(count):
        source, to = load_item(sources, t), target + t * width
        prefetch(load_item(sources, t + ahead))
        prefetch(load_item(sources, t + ahead) + width - 1)
        if width > 32:
            copy_32(to, source)
            copy_32(to + width - 32, source + width - 32)
        elif width > 16:
            copy_16(to, source)
            copy_16(to + width - 16, source + width - 16)
        elif width > 8:
            copy_8(to, source)
            copy_8(to + width - 8, source + width - 8)
        elif width > 4:
            copy_4(to, source)
            copy_4(to + width - 4, source + width - 4)
        else:
            copy_2(to, source)
            copy_1(to + 2, source + 2)


@spliced
def _copy_rows(target: Address, sources: Address, count: int, ahead: int, width: int) -> None:
    """The same for slices of a line or more: as each line is copied, that of a later slice is asked for."""
    for t in range(count):
        source, to = load_item(sources, t), target + t * width
        later = load_item(sources, t + ahead)
        for c in range(0, width - LINE, LINE):
            prefetch(later + c)
            copy_64(to + c, source + c)
        prefetch(later + width - LINE)
        copy_64(to + width - LINE, source + width - LINE)


@spliced
def _copy_rows_nontemporal(
    target: Address, sources: Address, count: int, ahead: int, width: int, joint: Address
) -> None:
    """The same past the caches, whole lines at a time; a line that two rows share is put together in `joint` first."""
    filled = target & (LINE - 1)
    if filled > 0:
        memcpy(target, load_item(sources, 0), LINE - filled)
    for t in range(count):
        source, to = load_item(sources, t), target + t * width
        later = load_item(sources, t + ahead)
        prefetch(later)
        c = 0
        if filled > 0:
            c = LINE - filled
            if t > 0:
                copy_64(joint + filled, source)
                copy_line_nontemporal(to - filled, joint)
        while c <= width - LINE:
            prefetch(later + c + LINE - 1)
            copy_line_nontemporal(to + c, source + c)
            c += LINE
        filled = width - c
        copy_64(joint + filled - LINE, source + width - LINE)
    memcpy(target + count * width - filled, joint, filled)


def gather_chunk(job: Address, number: int) -> int:
    """Gather chunk `number` of a job: its first bad component, or -1.

    Offsets are addresses of slices. The scratch memory has those of the block in hand, then those of the next block,
    then how far from the first tuple's batch the batch of each tuple of a block begins.
    """
    source, target, components = load_item(job, DATA), load_item(job, OUTPUT), load_item(job, COMPONENTS)
    axes, depth, width = load_item(job, AXES), load_item(job, DEPTH), load_item(job, WIDTH)
    batches, tuples, stride = load_item(job, BATCHES), load_item(job, TUPLES), load_item(job, STRIDE)
    flags = load_item(job, FLAGS)
    cached, broadcast = flags & DATA_IN_CACHE != 0, flags & BROADCAST_INDICES != 0
    wrap, nontemporal = flags & WRAP_NEGATIVE != 0, flags & NONTEMPORAL != 0
    low = load_item(job, START) + number * load_item(job, CHUNK_SIZE)
    high = min(low + load_item(job, CHUNK_SIZE), load_item(job, TOTAL))
    if flags & WHOLE_BATCHES != 0:
        batches = high - low
        source += low * stride
        target += low * tuples * width
        low = 0
        high = tuples
    copies = batches > 0 and tuples > 0 and width > 0
    offsets = stack_scratch()
    bases = offsets + 16 * BLOCK
    reach = 0
    if not cached:
        reach = _ITEMS_AHEAD if width < LINE else max(1, min(_ROWS_AHEAD, _ROW_BYTES_AHEAD // width))
    joint = aligned_line()

    size_0 = load_item(axes, 0) if depth > 0 else 1
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

    done = low  # tuples whose offsets are written
    base = 0  # where the batch of the next tuple begins
    left = tuples  # tuples that remain in that batch
    most = min(BLOCK, high - low)  # tuples of a block
    place = target  # of the first slice of the block in hand
    step = 0  # bytes of the batches of a block
    if broadcast or batches == 1 or tuples >= BLOCK:
        for t in range(most):
            store_item(bases, t, 0)
    elif tuples > 0:
        most = 0
        while most + tuples <= BLOCK and most < high - low:
            for t in range(tuples):
                store_item(bases, most + t, step)
            most += tuples
            step += stride
    if not broadcast and low > 0:
        passed = low // tuples
        base = passed * stride
        left -= low - passed * tuples
        place += low * width
    repeats = 0  # batches for which the block in hand is still to be repeated
    repeated = 0  # offsets that are repeated
    group = 1  # batches that one repetition covers
    count = 0  # slices of the block in hand
    ahead = 0  # how many slices before its copy a slice of it is asked for
    while True:
        # Write the offsets of the next block behind those of the block in hand.
        more = 0
        next_place = place + count * width
        if repeats > 0:
            taken = min(repeats, group)
            more = taken * repeated
            for t in range(more):
                store_item(offsets, count + t, load_item(offsets, t) + step)
            repeats -= taken
            next_place = place + group * tuples * width
        elif done < high:
            more = min(most, high - done)
            if tuples >= BLOCK:
                more = min(more, left)  # of one batch
            first = done * depth
            origin, fresh = source + base, offsets + 8 * count
            if depth == 1:
                signs = _write_offsets_1(fresh, bases, origin, components, first, more, lasts, wraps, steps)
            elif depth == 2:
                signs = _write_offsets_2(fresh, bases, origin, components, first, more, lasts, wraps, steps)
            elif depth == 3:
                signs = _write_offsets_3(fresh, bases, origin, components, first, more, lasts, wraps, steps)
            elif depth == 4:
                signs = _write_offsets_4(fresh, bases, origin, components, first, more, lasts, wraps, steps)
            elif depth == _MOST_UNROLLED:
                signs = _write_offsets_5(fresh, bases, origin, components, first, more, lasts, wraps, steps)
            else:
                signs = _write_offsets_deep(fresh, bases, origin, components, first, more, depth, axes, wrap, stride)
            if signs < 0:
                bad = _first_bad(components, first, more, depth, axes, wrap)
                if bad >= 0:
                    return bad
            done += more
            if broadcast:
                next_place = target + (done - more) * width
                if copies:
                    repeated = more
                    group = min(batches, max(1, BLOCK // tuples)) if more == tuples else 1
                    step = group * stride
                    for t in range(more, more * group):
                        store_item(offsets, count + t, load_item(offsets, count + t - repeated) + stride)
                    more *= group
                    repeats = batches - group
            elif tuples < BLOCK:
                base += step
            else:
                left -= more
                if left == 0:
                    left = tuples
                    base += stride
        for t in range(count + more, count + reach):
            # There is nothing more to ask for: what is copied last is asked for again.
            store_item(offsets, t, load_item(offsets, t - 1) if t > 0 else source)
        if copies:
            if count == 0:
                ahead = reach
                for t in range(ahead):
                    prefetch(load_item(offsets, t))
            elif width == 1:
                _copy_slices_1(place, offsets, count, ahead)
            elif width == 2:
                _copy_slices_2(place, offsets, count, ahead)
            elif width == 4:
                _copy_slices_4(place, offsets, count, ahead)
            elif width == 8:
                _copy_slices_8(place, offsets, count, ahead)
            elif width == 16:
                _copy_slices_16(place, offsets, count, ahead)
            elif width < LINE:
                _copy_short_slices(place, offsets, count, ahead, width)
            elif nontemporal:
                _copy_rows_nontemporal(place, offsets, count, ahead, width, joint)
            else:
                _copy_rows(place, offsets, count, ahead, width)
        if more == 0:
            break
        for t in range(more):
            store_item(offsets, t, load_item(offsets, count + t))
        count = more
        place = next_place
        # Items that share cache lines are found by the hardware, which asking by hand only disturbs.
        ahead = reach
        if width < LINE and abs(load_item(offsets, count - 1) - load_item(offsets, 0)) < NEIGHBOURS_BYTES * count:
            ahead = 0
    if nontemporal:
        fence()
    return -1
