"""A part of a gather, compiled by Numba: what a CPU does for most of its time here.

It goes over the tuples in blocks. Component by component it checks a block and adds up its offsets, in vector
registers; while it copies the slices of one block it asks for the memory that the next one needs, so that the waits
overlap. Slices are so many bytes, of whatever type; tuples of up to five components have a loop each, and deeper ones
one more.
"""

from __future__ import annotations

from typing import Final

from app.kernels.numba_cpu import memory_intrinsics
from app.kernels.numba_cpu.memory_intrinsics import (
    get,
    get_constant,
    line,
    move,
    move_1,
    move_2,
    move_4,
    move_8,
    move_16,
    move_32,
    move_64,
    prefetch,
    put,
    scratch,
    settle,
    stream_64,
)

BLOCK: Final = memory_intrinsics.SCRATCH_ITEMS // 3
"""Most tuples that are checked and copied at a time; parts begin with a batch where a batch has fewer."""

# What a note about a gather holds, in int64.
DATA: Final = 0  # addresses: of the data,
OUTPUT: Final = 1
COMPONENTS: Final = 2
AXES: Final = 3  # and of the sizes of the indexed axes
DEPTH: Final = 4
BATCHES: Final = 5
TUPLES: Final = 6  # of a batch
WIDTH: Final = 7  # bytes of a slice
STRIDE: Final = 8  # bytes of a batch of data
TOTAL: Final = 9  # tuples to be shared out, or batches
SIZE: Final = 10  # of them in a part
COUNT: Final = 11  # parts
FLAGS: Final = 12
START: Final = 13  # the first tuple of part 0
INDEX: Final = 14  # the type of the components: int64 for `gather_part` (see `numba_header.index_type`)
PART: Final = 15  # where `gather_part` lies

NEAR: Final = 1  # caches hold the data: no need to ask for it ahead
SHARED: Final = 2  # all batches have the same tuples
WRAP: Final = 4  # negative components count from the end
STREAM: Final = 8  # caches do not hold the output: it is stored past them
WHOLE_BATCHES: Final = 16  # parts are of batches, rather than of tuples

_CLOSE_BYTES: Final = 48  # from one slice to the next on average, below which neighbours share cache lines


def gather_part(note, number):  # type: ignore[no-untyped-def]
    """Part `number` of the gather that the note is about; the first bad component of it, or -1."""
    source, target, components, axes = get(note, DATA), get(note, OUTPUT), get(note, COMPONENTS), get(note, AXES)
    depth, batches, tuples, width = get(note, DEPTH), get(note, BATCHES), get(note, TUPLES), get(note, WIDTH)
    stride, flags = get(note, STRIDE), get(note, FLAGS)
    near, shared, wrap, stream = flags & NEAR != 0, flags & SHARED != 0, flags & WRAP != 0, flags & STREAM != 0
    low = get(note, START) + number * get(note, SIZE)
    high = min(low + get(note, SIZE), get(note, TOTAL))
    if flags & WHOLE_BATCHES != 0:
        batches = high - low
        source += low * stride
        target += low * tuples * width
        low = 0
        high = tuples
    copies = batches > 0 and tuples > 0 and width > 0
    offsets = scratch()  # of `count` slices in hand, then of the next
    bases = offsets + 16 * BLOCK  # where the batch begins that a tuple of a block belongs to, from where the first does
    ahead = 0
    reach = 0  # how many slices before its copy a slice is asked for; best measured: 128, less for rows
    if not near:
        reach = 128 if width < 64 else max(1, min(16, 4096 // width))
    joint = line()

    # Sizes of the first axes, what a negative component needs there, the last good one, and bytes of a step along it.
    size_0 = get(axes, 0) if depth > 0 else 1
    size_1 = get(axes, 1) if depth > 1 else 1
    size_2 = get(axes, 2) if depth > 2 else 1
    size_3 = get(axes, 3) if depth > 3 else 1
    size_4 = get(axes, 4) if depth > 4 else 1
    fix_0, fix_1, fix_2, fix_3, fix_4 = (size_0, size_1, size_2, size_3, size_4) if wrap else (0, 0, 0, 0, 0)
    last_0, last_1, last_2, last_3, last_4 = size_0 - 1, size_1 - 1, size_2 - 1, size_3 - 1, size_4 - 1
    step_3 = width * size_4
    step_2 = step_3 * size_3
    step_1 = step_2 * size_2
    step_0 = step_1 * size_1

    done = low  # tuples read from indices
    base = 0  # where the batch begins that the next tuple belongs to
    left = tuples  # tuples that remain in that batch
    most = min(BLOCK, high - low)  # tuples of a block
    place = target
    step = 0  # bytes of the batches of a block
    if shared or batches == 1 or tuples >= BLOCK:
        for t in range(most):
            put(bases, t, 0)
    elif tuples > 0:
        most = 0
        while most + tuples <= BLOCK and most < high - low:
            for t in range(tuples):
                put(bases, most + t, step)
            most += tuples
            step += stride
    if not shared and low > 0:
        passed = low // tuples
        base = passed * stride
        left -= low - passed * tuples
        place += low * width
    repeats = 0  # batches for which the block in hand is still to be repeated
    block = 0  # offsets that are repeated
    group = 1  # how many batches one repetition covers
    count = 0
    while True:
        # Write the offsets of the next block behind those of the block in hand.
        more = 0
        next_place = place + count * width
        if repeats > 0:
            taken = min(repeats, group)
            more = taken * block
            for t in range(more):
                put(offsets, count + t, get(offsets, t) + step)
            repeats -= taken
            next_place = place + group * tuples * width
        elif done < high:
            more = min(most, high - done)
            if tuples >= BLOCK:
                more = min(more, left)  # of one batch
            origin = source + base
            first = done * depth
            fresh = offsets + 8 * count
            worst = 0  # negative once any component is: a bad one makes itself or its distance to the last negative
            if depth == 1:
                for t in range(more):
                    a = get_constant(components, first + t)
                    a += (a >> 63) & fix_0
                    worst |= a | (last_0 - a)
                    put(fresh, t, a * width + origin + get(bases, t))
            elif depth == 2:
                for t in range(more):
                    a = get_constant(components, first + 2 * t)
                    b = get_constant(components, first + 2 * t + 1)
                    a += (a >> 63) & fix_0
                    b += (b >> 63) & fix_1
                    worst |= a | (last_0 - a) | b | (last_1 - b)
                    put(fresh, t, a * step_0 + b * width + origin + get(bases, t))
            elif depth == 3:
                for t in range(more):
                    a = get_constant(components, first + 3 * t)
                    b = get_constant(components, first + 3 * t + 1)
                    c = get_constant(components, first + 3 * t + 2)
                    a += (a >> 63) & fix_0
                    b += (b >> 63) & fix_1
                    c += (c >> 63) & fix_2
                    worst |= a | (last_0 - a) | b | (last_1 - b) | c | (last_2 - c)
                    put(fresh, t, a * step_0 + b * step_1 + c * width + origin + get(bases, t))
            elif depth == 4:
                for t in range(more):
                    a = get_constant(components, first + 4 * t)
                    b = get_constant(components, first + 4 * t + 1)
                    c = get_constant(components, first + 4 * t + 2)
                    d = get_constant(components, first + 4 * t + 3)
                    a += (a >> 63) & fix_0
                    b += (b >> 63) & fix_1
                    c += (c >> 63) & fix_2
                    d += (d >> 63) & fix_3
                    worst |= a | (last_0 - a) | b | (last_1 - b) | c | (last_2 - c)
                    worst |= d | (last_3 - d)
                    put(fresh, t, a * step_0 + b * step_1 + c * step_2 + d * width + origin + get(bases, t))
            elif depth == 5:
                for t in range(more):
                    a = get_constant(components, first + 5 * t)
                    b = get_constant(components, first + 5 * t + 1)
                    c = get_constant(components, first + 5 * t + 2)
                    d = get_constant(components, first + 5 * t + 3)
                    e = get_constant(components, first + 5 * t + 4)
                    a += (a >> 63) & fix_0
                    b += (b >> 63) & fix_1
                    c += (c >> 63) & fix_2
                    d += (d >> 63) & fix_3
                    e += (e >> 63) & fix_4
                    worst |= a | (last_0 - a) | b | (last_1 - b) | c | (last_2 - c)
                    worst |= d | (last_3 - d) | e | (last_4 - e)
                    put(
                        fresh, t, a * step_0 + b * step_1 + c * step_2 + d * step_3 + e * width + origin + get(bases, t)
                    )
            else:
                for t in range(more):
                    put(fresh, t, origin + get(bases, t))
                at = stride  # bytes of a step along axis j
                for j in range(depth):
                    size = get(axes, j)
                    fix = size if wrap else 0
                    at = at // size if size else 0
                    for t in range(more):
                        a = get_constant(components, first + t * depth + j)
                        a += (a >> 63) & fix
                        worst |= a | (size - 1 - a)
                        put(fresh, t, get(fresh, t) + a * at)
            if worst < 0:
                for at in range(first, first + more * depth):
                    a = get(components, at)
                    size = get(axes, at % depth)
                    if a >= size or a < (-size if wrap else 0):
                        return at
            done += more
            if shared:
                next_place = target + (done - more) * width
                if copies:
                    block = more
                    group = min(batches, max(1, BLOCK // tuples)) if more == tuples else 1
                    step = group * stride
                    for t in range(more, more * group):
                        put(offsets, count + t, get(offsets, count + t - block) + stride)
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
            put(offsets, t, get(offsets, t - 1) if t > 0 else source)  # nothing to ask for: what is copied last
        if copies:
            if count == 0:
                ahead = reach
                for t in range(ahead):
                    prefetch(get(offsets, t))
            elif width == 1:
                if ahead > 0:
                    for t in range(count):
                        prefetch(get(offsets, t + ahead))
                        move_1(place + t, get(offsets, t))
                else:
                    for t in range(count):
                        move_1(place + t, get(offsets, t))
            elif width == 2:
                if ahead > 0:
                    for t in range(count):
                        prefetch(get(offsets, t + ahead))
                        move_2(place + 2 * t, get(offsets, t))
                else:
                    for t in range(count):
                        move_2(place + 2 * t, get(offsets, t))
            elif width == 4:
                if ahead > 0:
                    for t in range(count):
                        prefetch(get(offsets, t + ahead))
                        move_4(place + 4 * t, get(offsets, t))
                else:
                    for t in range(count):
                        move_4(place + 4 * t, get(offsets, t))
            elif width == 8:
                if ahead > 0:
                    for t in range(count):
                        prefetch(get(offsets, t + ahead))
                        move_8(place + 8 * t, get(offsets, t))
                else:
                    for t in range(count):
                        move_8(place + 8 * t, get(offsets, t))
            elif width == 16:
                if ahead > 0:
                    for t in range(count):
                        prefetch(get(offsets, t + ahead))
                        move_16(place + 16 * t, get(offsets, t))
                else:
                    for t in range(count):
                        move_16(place + 16 * t, get(offsets, t))
            elif width < 64:
                for t in range(count):
                    at = get(offsets, t)
                    to = place + t * width
                    prefetch(get(offsets, t + ahead))
                    prefetch(get(offsets, t + ahead) + width - 1)
                    if width > 32:
                        move_32(to, at)
                        move_32(to + width - 32, at + width - 32)
                    elif width > 16:
                        move_16(to, at)
                        move_16(to + width - 16, at + width - 16)
                    elif width > 8:
                        move_8(to, at)
                        move_8(to + width - 8, at + width - 8)
                    elif width > 4:
                        move_4(to, at)
                        move_4(to + width - 4, at + width - 4)
                    else:
                        move_2(to, at)
                        move_1(to + 2, at + 2)
            elif stream:
                # Whole lines past the caches; a line that two rows share is put together in `joint` first.
                filled = place & 63
                if filled > 0:
                    move(place, get(offsets, 0), 64 - filled)
                for t in range(count):
                    at = get(offsets, t)
                    to = place + t * width
                    soon = get(offsets, t + ahead)
                    prefetch(soon)
                    c = 0
                    if filled > 0:
                        c = 64 - filled
                        if t > 0:
                            move_64(joint + filled, at)
                            stream_64(to - filled, joint)
                    while c <= width - 64:
                        prefetch(soon + c + 63)
                        stream_64(to + c, at + c)
                        c += 64
                    filled = width - c
                    move_64(joint + filled - 64, at + width - 64)
                move(place + count * width - filled, joint, filled)
            else:
                for t in range(count):
                    at = get(offsets, t)
                    to = place + t * width
                    soon = get(offsets, t + ahead)
                    for c in range(0, width - 64, 64):
                        prefetch(soon + c)
                        move_64(to + c, at + c)
                    prefetch(soon + width - 64)
                    move_64(to + width - 64, at + width - 64)
        if more == 0:
            break
        for t in range(more):
            put(offsets, t, get(offsets, count + t))
        count = more
        place = next_place
        # Items that share cache lines are found by the hardware, which asking by hand only disturbs.
        ahead = reach
        if width < 64 and abs(get(offsets, count - 1) - get(offsets, 0)) < _CLOSE_BYTES * count:
            ahead = 0
    if stream:
        settle()
    return -1
