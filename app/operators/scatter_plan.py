"""Scatters as kernels see them: plans whose output is a copy of data with updates applied to some of it.

Updates count in the row-major order of the indices. Without a reduction the last one of a place wins; with one they are
applied one after the other, in data's type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

from app.operators.gather_plan import OneBatchPlan, SingleIndexPlan
from app.tensors.operator_signature import Reduction


@dataclass(frozen=True, slots=True)
class ScatterNDPlan(OneBatchPlan):
    """data and output are [*dims, slice_items], indices [tuples, depth], updates [tuples, slice_items].

    `dims` are the sizes of the indexed axes; `item_size` is in bytes (1, 2, 4, 8 or 16); `wrap` says that an index in
    [-s, -1] counts from the end (else it is out of bounds). `dtype` is the name of data's type, in which updates are
    reduced.
    """

    tuples: int
    dims: tuple[int, ...]
    slice_items: int
    item_size: int
    wrap: bool
    dtype: str
    reduction: Reduction
    rows: int = field(init=False, repr=False, compare=False)
    """Slices of data, of which tuples name some: the product of `dims`."""
    kept: Any = field(default=None, init=False, repr=False, compare=False)
    """What a kernel has made of the plan and will need again."""

    def __post_init__(self) -> None:
        # Here once, and then read many times.
        object.__setattr__(self, "rows", prod(self.dims))

    @property
    def depth(self) -> int:
        """Length of an index tuple, k."""
        return len(self.dims)

    @property
    def index_items(self) -> int:
        """Items of indices: components to check."""
        return self.tuples * len(self.dims)

    @property
    def update_items(self) -> int:
        """Items of updates."""
        return self.tuples * self.slice_items

    @property
    def block_items(self) -> int:
        """Items of data."""
        return self.rows * self.slice_items

    data_items = output_items = copied_items = block_items

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return self.output_items * self.item_size


@dataclass(frozen=True, slots=True)
class ScatterElementsPlan(SingleIndexPlan):
    """indices and updates have the axes `sizes`; data and output have `data_items` items.

    The update at (p0, p1, ...) goes to item p0 * strides[0] + p1 * strides[1] + ... + entry * axis_stride, where entry
    is what indices has at the same place; along the scatter's own axis the stride is 0. For the rest see
    `GatherElementsPlan`, whose places these are, and `ScatterNDPlan`.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    axis_size: int
    axis_stride: int
    data_items: int
    item_size: int
    wrap: bool
    dtype: str
    reduction: Reduction
    index_items: int = field(init=False, repr=False, compare=False)
    """Items of indices and of updates: the product of `sizes`."""
    kept: Any = field(default=None, init=False, repr=False, compare=False)
    """What a kernel has made of the plan and will need again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "index_items", prod(self.sizes))

    @property
    def tuples(self) -> int:
        """Entries of indices."""
        return self.index_items

    update_items = tuples

    @property
    def block_items(self) -> int:
        """Items of data among which an entry names one."""
        return self.axis_size * self.axis_stride

    @property
    def output_items(self) -> int:
        """Items of the output."""
        return self.data_items

    copied_items = output_items

    @property
    def output_bytes(self) -> int:
        """Bytes of the output."""
        return self.data_items * self.item_size
