"""The gradient of a gather as kernels see it: the gather's own plan, read backwards.

grad_output is [batches, tuples, slice_items], what the gather's output was, and grad_data is [batches, *dims,
slice_items], what its data were: zeros, to which each slice of grad_output is added at its index.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import prod
from typing import Final, Literal, get_args

from app.operators.gather_plan import GatherPlan

FloatType = Literal["float16", "bfloat16", "float32", "float64"]
FLOAT_TYPES: Final[tuple[FloatType, ...]] = get_args(FloatType)
SCRATCH_HEAD: Final = 4096
"""Items of a kernel's working memory that do not depend on the number of tuples."""

_UNIQUE_ITEMS: Final = 5
"""Items of int64 for each tuple that NumPy takes to find the distinct ones of a sparse gradient."""
_SORTED_BYTES: Final = 64
"""Bytes that are moved for a tuple while tuples are sorted: 8 are read and written, about four times."""


@dataclass(frozen=True, slots=True)
class BackwardPlan:
    """The gradient of `gather` for items of a float type.

    Slices are added in the order of their indices, in float32 (float64 for float64), from 0.0 on; the sum is
    multiplied by `coefficient`, which is rounded to that type first, and rounded once to the float type. A NaN of the
    result is the positive quiet one without further bits. So the bits do not depend on kernel or threads.

    `sparse` asks for the slices of grad_data that an index names, in ascending order and without others; the gather has
    one batch then.

    The fields from `batches` to `block_items` are the gather's.
    """

    gather: GatherPlan
    float_type: FloatType
    sparse: bool = False
    coefficient: float = 1.0

    batches: int = field(init=False)
    tuples: int = field(init=False)
    dims: tuple[int, ...] = field(init=False)
    slice_items: int = field(init=False)
    item_size: int = field(init=False)
    broadcast_indices: bool = field(init=False)
    wrap: bool = field(init=False)
    depth: int = field(init=False)
    index_items: int = field(init=False)
    block_items: int = field(init=False)

    def __post_init__(self) -> None:
        for own in fields(self):
            if not own.init:
                object.__setattr__(self, own.name, getattr(self.gather, own.name))

    @property
    def data_items(self) -> int:
        """Items of grad_output, which the kernel reads."""
        return self.gather.output_items

    @property
    def copied_items(self) -> int:
        """Items that are written one behind the other, and those that sorting the tuples moves in their place."""
        return self.output_items + self.index_tuples * _SORTED_BYTES // max(self.item_size, 1)

    @property
    def index_tuples(self) -> int:
        """Tuples of indices: all batches share them where they are broadcast."""
        gather = self.gather
        return self.tuples if self.broadcast_indices else gather.batches // gather.batches_per_set * self.tuples

    @property
    def rows(self) -> int:
        """Slices of the result: all of grad_data's, or, where `sparse`, as many as there can be of distinct tuples."""
        return min(self.tuples, self.batch_rows) if self.sparse else self.batches * self.batch_rows

    @property
    def output_items(self) -> int:
        """Items that the kernel writes, or, where `sparse`, writes at most."""
        return self.rows * self.slice_items

    @property
    def output_bytes(self) -> int:
        """Bytes of these items and, where `sparse`, of the flat places and tuples that go with them."""
        own = self.output_items * self.item_size
        return own + self.rows * 8 * (1 + self.depth) if self.sparse else own

    @property
    def batch_rows(self) -> int:
        """Slices of grad_data in one batch."""
        return prod(self.dims)

    @property
    def sum_size(self) -> int:
        """Bytes of a sum: float64 for float64, else float32."""
        return 8 if self.float_type == "float64" else 4

    @property
    def scratch_items(self) -> int:
        """Items of int64 that a kernel needs as working memory.

        One for each tuple and, to sort the tuples of a sparse gradient, two more; and the sums of 16-bit floats.
        """
        sums = 0 if self.sum_size == self.item_size else (self.output_items * self.sum_size + 7) // 8
        return SCRATCH_HEAD + self.index_tuples * (3 if self.sparse else 1) + sums

    @property
    def scratch_bytes(self) -> int:
        """Bytes of that memory, and of what a kernel takes beside it."""
        return 8 * (self.scratch_items + (_UNIQUE_ITEMS * self.index_tuples if self.sparse else 0))
