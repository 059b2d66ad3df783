"""A chunk of a gather, compiled by Numba: what a CPU does for most of its time here.

It goes over the tuples of indices in blocks. It checks a block and writes the addresses of its slices
(`write_offsets`); while it copies the slices of one block (`copy_slices`) it asks for the memory that the next one
needs, so that the waits overlap.

Figures that stand here and in those two were measured as `benchmarks/README.md` says, under "CPU kernel: what was
tried".
"""

from __future__ import annotations

from typing import Final

from app.kernels.numba_cpu.copy_slices import NEIGHBOURS_BYTES, copy_block
from app.kernels.numba_cpu.gather_job import (
    AXES,
    BATCHES,
    BLOCK,
    BROADCAST_INDICES,
    CHUNK_SIZE,
    COMPONENTS,
    DATA,
    DEPTH,
    FILLS,
    FLAGS,
    NONTEMPORAL,
    NOT_AHEAD,
    OUTPUT,
    START,
    STRIDE,
    TOTAL,
    TUPLES,
    WHOLE_BATCHES,
    WIDTH,
    WRAP_NEGATIVE,
)
from app.kernels.numba_cpu.memory_intrinsics import (
    LINE,
    aligned_line,
    fence,
    load_item,
    prefetch,
    stack_scratch,
    store_item,
)
from app.kernels.numba_cpu.write_offsets import fill_bad_tuples, first_bad_component, write_block_offsets
from app.llvm_intrinsics import Address

_ITEMS_AHEAD: Final = 128
"""How many slices before its copy a slice is asked for; measured with `benchmarks.kernels`, as the next two."""
_ROWS_AHEAD: Final = 16
_ROW_BYTES_AHEAD: Final = 4096
"""The same for slices of a line or more: at most so many of them, and so many bytes."""


def gather_chunk(job: Address, number: int) -> int:
    """Gather chunk `number` of a job: its first bad component, or -1.

    Offsets are addresses of slices. The scratch memory has those of the block in hand, then those of the next block,
    then how far from the first tuple's batch the batch of each tuple of a block begins.

    It is one function, since nearly all of its variables go from each step of the loop into the next.
    """
    source, target, components = load_item(job, DATA), load_item(job, OUTPUT), load_item(job, COMPONENTS)
    axes, depth, width = load_item(job, AXES), load_item(job, DEPTH), load_item(job, WIDTH)
    batches, tuples, stride = load_item(job, BATCHES), load_item(job, TUPLES), load_item(job, STRIDE)
    flags = load_item(job, FLAGS)
    broadcast = flags & BROADCAST_INDICES != 0
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
    if flags & NOT_AHEAD == 0:
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
            signs = write_block_offsets(
                fresh, bases, origin, components, first, more, lasts, wraps, steps, depth, axes, wrap, stride
            )
            if signs < 0 and flags & FILLS != 0:
                fill_bad_tuples(fresh, components, first, more, depth, axes, wrap)
            elif signs < 0:
                bad = first_bad_component(components, first, more, depth, axes, wrap)
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
            else:
                copy_block(place, offsets, count, ahead, width, nontemporal, joint)
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
