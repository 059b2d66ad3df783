"""The plans of scatters, the kernels' input. The output is a copy of data with updates applied.

Updates are applied in the row-major order of the indices. Without a reduction, the last update of a position wins. A
reduction combines the updates one by one, in data's type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import ClassVar

from app.operators.gather_elements import ElementsPlan
from app.operators.gather_plan import OneBatchPlan
from app.tensors.operator_signature import Reduction


@dataclass(frozen=True, slots=True)
class ScatterNDPlan(OneBatchPlan):
    """data and output are [*dims, slice_items], indices are [tuples, depth], updates are [tuples, slice_items].

    `dims` are the sizes of the indexed axes. `item_size` is in bytes (1, 2, 4, 8 or 16). With `wrap`, an index in [-s,
    -1] counts from the end; without it, the index is out of bounds. `dtype` is the name of data's type, in which
    updates are reduced.
    """

    tuples: int
    dims: tuple[int, ...]
    slice_items: int
    item_size: int
    wrap: bool
    dtype: str
    reduction: Reduction
    scratch_bytes: ClassVar[int] = 0
    rows: int = field(init=False, repr=False, compare=False)
    """Number of slices of data that a tuple can select: the product of `dims`."""

    def __post_init__(self) -> None:
        # This is computed once, because it is read often.
        object.__setattr__(self, "rows", prod(self.dims))

    @property
    def depth(self) -> int:
        """Length of an index tuple, k."""
        return len(self.dims)

    @property
    def index_items(self) -> int:
        """Number of items in indices, each of which is a component to check."""
        return self.tuples * len(self.dims)

    @property
    def update_items(self) -> int:
        """Number of items in updates."""
        return self.tuples * self.slice_items

    @property
    def block_items(self) -> int:
        """Number of items in data."""
        return self.rows * self.slice_items

    data_items = output_items = copied_items = block_items

    @property
    def output_bytes(self) -> int:
        """Number of bytes in the output."""
        return self.output_items * self.item_size


@dataclass(frozen=True, slots=True)
class ScatterElementsPlan(ElementsPlan):
    """Each entry of indices is the target of the update at the same position.

    See `ScatterNDPlan` for the other fields.
    """

    dtype: str
    reduction: Reduction

    @property
    def update_items(self) -> int:
        """Number of items in updates."""
        return self.index_items

    @property
    def output_items(self) -> int:
        """Number of items in the output, all of which are first copied from data."""
        return self.data_items

    copied_items = output_items

    @property
    def output_bytes(self) -> int:
        """Number of bytes in the output."""
        return self.data_items * self.item_size
