"""Tuples sorted by the place that they name, for kernels that add up or write what belongs to the same place.

A pair is `place << low | number of the tuple` in an int64 that is not negative. Sorted by its upper bits alone, by a
radix sort that keeps the order of equal ones, tuples of one place stay in their own order.
"""

from __future__ import annotations

from typing import Final

from app.kernels.numba_cpu.add_narrow_rows import block_of_components, write_places
from app.kernels.numba_cpu.gather_job import BLOCK
from app.kernels.numba_cpu.memory_intrinsics import load_item, stack_scratch, store_item
from app.kernels.numba_cpu.widen_indices import MAX_DEPTH
from app.llvm_intrinsics import Address, inner, stack_words

IN_ORDER: Final = -1
NOT_IN_ORDER: Final = -2
"""What `write_pairs` says of places: none is before the one that came last, or one is."""

_FEW: Final = 1 << 12
"""Pairs, below which digits of 8 bits are faster: to clear and add up the counts takes as long as the pairs."""
_FEW_BITS: Final = 8
DIGIT_BITS: Final = 11
"""Most bits of a digit: the counts of 2,048 digits stay in the first cache."""
_stack_block = stack_words(BLOCK * MAX_DEPTH)


@inner
def bit_length(value: int) -> int:
    """Bits of a value that is not negative."""
    bits = 0
    while value > 0:
        value >>= 1
        bits += 1
    return bits


@inner
def write_pairs(
    kind: int,
    components: Address,
    batches: int,
    tuples: int,
    depth: int,
    axes: Address,
    wrap: bool,
    low: int,
    pairs: Address,
) -> int:
    """Write the pair of each tuple: the first bad component, IN_ORDER, or NOT_IN_ORDER."""
    block, places = _stack_block(), stack_scratch()
    number = 0
    before = -1
    result = IN_ORDER
    for batch in range(batches):
        done = 0
        while done < tuples:
            count = min(BLOCK, tuples - done)
            given = block_of_components(kind, components, number * depth, count * depth, block)
            bad = write_places(given, count, depth, axes, wrap, batch, places)
            if bad >= 0:
                return number * depth + bad
            for at in range(count):
                place = load_item(places, at)
                if place < before:
                    result = NOT_IN_ORDER
                before = place
                store_item(pairs, number, place << low | number)
                number += 1
            done += count
    return result


@inner
def sort_pairs(pairs: Address, other: Address, count: int, low: int, bits: int, counts: Address) -> Address:
    """Sort by the `bits` above the lowest `low`; where the sorted pairs are, `pairs` or `other`.

    `counts` has room for 1 << DIGIT_BITS int64.
    """
    most = _FEW_BITS if count < _FEW else DIGIT_BITS
    passes = (bits + most - 1) // most
    shift = low
    for done in range(passes):
        width = (low + bits - shift + passes - done - 1) // (passes - done)
        mask = (1 << width) - 1
        for digit in range(mask + 1):
            store_item(counts, digit, 0)
        for at in range(count):
            digit = (load_item(pairs, at) >> shift) & mask
            store_item(counts, digit, load_item(counts, digit) + 1)
        before = 0
        for digit in range(mask + 1):
            here = load_item(counts, digit)
            store_item(counts, digit, before)
            before += here
        for at in range(count):
            pair = load_item(pairs, at)
            digit = (pair >> shift) & mask
            place = load_item(counts, digit)
            store_item(counts, digit, place + 1)
            store_item(other, place, pair)
        pairs, other = other, pairs
        shift += width
    return pairs


@inner
def find_groups(pairs: Address, count: int, low: int, starts: Address) -> int:
    """Write where each group of pairs of one place begins, and the end; how many groups there are."""
    groups = 0
    last = -1
    for at in range(count):
        place = load_item(pairs, at) >> low
        if place != last:
            store_item(starts, groups, at)
            groups += 1
            last = place
    store_item(starts, groups, count)
    return groups


@inner
def largest_group(starts: Address, groups: int) -> int:
    """Pairs of the largest group."""
    most = 0
    for group in range(groups):
        most = max(most, load_item(starts, group + 1) - load_item(starts, group))
    return most
