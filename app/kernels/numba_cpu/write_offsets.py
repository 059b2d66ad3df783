"""The addresses of the slices that tuples of indices pick, and the check of each component on the way.

Component by component the loops check a block of tuples and add up its offsets, in vector registers.
`write_offsets(depth)` makes the loops for tuples of up to five components; deeper ones have one more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from app.kernels.numba_cpu.memory_intrinsics import add_atomically, load_invariant, load_item, store_item
from app.llvm_intrinsics import Address, inner, spliced, udiv

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
def first_bad_component(components: Address, first: int, count: int, depth: int, axes: Address, wrap: bool) -> int:
    """The first component out of bounds of `count` tuples from component `first` on, or -1."""
    at = first
    for _ in range(count):
        for axis in range(depth):
            index, size = load_item(components, at), load_item(axes, axis)
            if index >= size or index < (-size if wrap else 0):
                return at
            at += 1
    return -1


@inner
def fill_bad_tuples(
    target: Address, components: Address, first: int, count: int, depth: int, axes: Address, wrap: bool
) -> None:
    """Where one of `count` tuples has a component out of bounds, write the address of the slice to fill with instead of
    its own; count those components (FILLS).
    """
    fill = load_item(axes, depth)
    replaced = 0
    for axis in range(depth):
        size = load_item(axes, axis)
        added = size if wrap else 0
        for t in range(count):
            index = load_invariant(components, first + t * depth + axis)
            index += (index >> 63) & added
            bad = (index | (size - 1 - index)) >> 63  # all bits or none
            replaced -= bad
            store_item(target, t, (load_item(target, t) & ~bad) | (fill & bad))
    add_atomically(load_item(axes, depth + 1), replaced)


@spliced
def write_block_offsets(
    target: Address,
    bases: Address,
    origin: Address,
    components: Address,
    first: int,
    count: int,
    lasts: Axes,
    wraps: Axes,
    steps: Axes,
    depth: int,
    axes: Address,
    wrap: bool,
    stride: int,
) -> int:
    """The loop for tuples of `depth` components; `axes`, `wrap` and `stride` are for the deeper ones."""
    if depth == 1:
        return _write_offsets_1(target, bases, origin, components, first, count, lasts, wraps, steps)
    if depth == 2:
        return _write_offsets_2(target, bases, origin, components, first, count, lasts, wraps, steps)
    if depth == 3:
        return _write_offsets_3(target, bases, origin, components, first, count, lasts, wraps, steps)
    if depth == 4:
        return _write_offsets_4(target, bases, origin, components, first, count, lasts, wraps, steps)
    if depth == _MOST_UNROLLED:
        return _write_offsets_5(target, bases, origin, components, first, count, lasts, wraps, steps)
    return _write_offsets_deep(target, bases, origin, components, first, count, depth, axes, wrap, stride)
