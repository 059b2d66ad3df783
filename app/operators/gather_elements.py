"""GatherElements: its plan, and the rules on its shapes.

With r = rank(data) = rank(indices) and an axis a of data, output.shape = indices.shape. The entry of indices at (...,
i, ...) picks the item of data at the same position, except that the entry's value replaces the coordinate on axis a:
data[..., indices[..., i, ...], ...].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from app.errors import GatherError, Place
from app.operators.dialects import Dialect
from app.operators.gather_plan import SingleIndexPlan
from app.operators.shape_rules import NO_TENSORS, check_axis, check_rank
from app.tensors.gather_call import Call
from app.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True)
class ElementsPlan(SingleIndexPlan):
    """The plan of an elements operator. indices has shape `sizes`, and data has `data_items` items in total.

    The entry of indices at (p0, p1, ...) selects item p0 * strides[0] + p1 * strides[1] + ... + entry * axis_stride of
    data. The stride of the operator's own axis is 0. Entries are below `axis_size`. `item_size` is in bytes (1, 2, 4, 8
    or 16). With `wrap`, an entry in [-axis_size, -1] counts from the end; without it, the entry is out of bounds.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    axis_size: int
    axis_stride: int
    data_items: int
    item_size: int
    wrap: bool
    index_items: int = field(init=False, repr=False, compare=False)
    """Number of items in indices, each of which is a component to check. It is the product of `sizes`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "index_items", prod(self.sizes))  # computed once, because it is read often

    # When a route is chosen, this counts as a gather of single items from anywhere in data, by tuples of length 1.

    @property
    def tuples(self) -> int:
        """Number of entries in indices."""
        return self.index_items

    @property
    def block_items(self) -> int:
        """Number of items in the part of data from which an entry picks one item."""
        return self.axis_size * self.axis_stride


@dataclass(frozen=True, slots=True)
class GatherElementsPlan(ElementsPlan):
    """The plan of a GatherElements. The output holds the items that the entries of indices select."""

    copied_items: ClassVar[int] = 0

    @property
    def output_items(self) -> int:
        """Number of items in the output."""
        return self.index_items

    @property
    def output_bytes(self) -> int:
        """Number of bytes in the output."""
        return self.index_items * self.item_size


def plan_gather_elements(
    dialect: Dialect, call: Call, data: Tensor, further: Mapping[str, Tensor] = NO_TENSORS
) -> tuple[GatherElementsPlan, tuple[int, ...], int]:
    """Check ranks, axis and shapes. Returns the plan, the output shape, and the axis counted from the front.

    Raises rank_too_small, rank_mismatch, axis_out_of_range or indices_shape_mismatch, in this order.
    """
    axis = check_axis_and_shapes(dialect, call, data)
    shape = call.indices.shape
    places = places_in_data(data.shape, shape, axis)
    return GatherElementsPlan(*places, data.dtype.carrier.itemsize, dialect.wrap), shape, axis


def check_axis_and_shapes(dialect: Dialect, call: Call, data: Tensor) -> int:
    """Check ranks, axis and shapes. Returns the axis counted from the front."""
    indices = call.indices
    check_rank(dialect, "data", data)
    check_same_rank(dialect, data, indices)
    axis = check_axis(dialect, data, call.parameters[0], call.pointer("axis"))
    check_indices_shape(dialect, data, indices, axis)
    return axis


def places_in_data(
    shape: tuple[int, ...], index_shape: tuple[int, ...], axis: int
) -> tuple[tuple[int, ...], tuple[int, ...], int, int, int]:
    """Return the fields of an `ElementsPlan` from `sizes` to `data_items`, which map positions in indices to data."""
    steps = [prod(shape[number + 1 :]) for number in range(len(shape))]
    strides = [0 if number == axis else step for number, step in enumerate(steps)]
    sizes, strides = _merge_axes(index_shape, strides)
    return tuple(sizes), tuple(strides), shape[axis], steps[axis], prod(shape)


def check_same_rank(dialect: Dialect, data: Tensor, indices: Tensor) -> None:
    """Check that rank(indices) == rank(data). Raises rank_mismatch."""
    rank, given = len(data.shape), len(indices.shape)
    if given != rank:
        raise GatherError(
            "rank_mismatch",
            f"indices has rank {given} and data has rank {rank}; the ranks must be equal",
            places=[Place(indices.shape_pointer, value=given, allowed=(rank, rank))],
            rule=dialect.rules["rank_mismatch"],
            hint=f"Give indices {rank} dimensions, as many as data has, or use POST /scatternd for whole slices."
            if dialect.reductions
            else None,
        )


def check_indices_shape(dialect: Dialect, data: Tensor, indices: Tensor, axis: int) -> None:
    """Check that on every axis except `axis`, indices are at most as long as data or, in some dialects, equally long.

    Raises indices_shape_mismatch.
    """
    for number, (size, given) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if number == axis or given == size or (given < size and not dialect.equal_sizes):
            continue
        raise GatherError(
            "indices_shape_mismatch",
            f"axis {number} has size {given} in indices and {'' if dialect.equal_sizes else 'only '}{size} in data",
            places=[
                Place(
                    indices.shape_pointer,
                    value=given,
                    axis=number,
                    size=size,
                    allowed=(size if dialect.equal_sizes else 0, size),
                )
            ],
            rule=dialect.rules["indices_shape_mismatch"],
            hint=f"Set dimension {number} of indices to {size}, its size in data, or choose another axis."
            if dialect.equal_sizes
            else None,
        )


def _merge_axes(sizes: tuple[int, ...], strides: list[int]) -> tuple[list[int], list[int]]:
    """Merge axes that are contiguous in data, so that the plan has as few axes as possible."""
    found: list[tuple[int, int]] = []
    for size, stride in zip(sizes, strides, strict=True):
        if size == 1:
            continue
        if found and found[-1][1] == size * stride and stride:
            found[-1] = found[-1][0] * size, stride
        else:
            found.append((size, stride))
    found = found or [(1, 0)]
    return [size for size, _ in found], [stride for _, stride in found]
