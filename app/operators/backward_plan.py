"""The plan of a gather's gradient: the gather's own plan, read backward.

grad_output is [batches, tuples, slice_items], the shape of the gather's output. grad_data is [batches, *dims,
slice_items], the shape of its data. Each slice of grad_output is added, at its index, to an array of zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import prod
from typing import Final, Literal, get_args

from app.operators.gather_plan import GatherPlan

FloatType = Literal["float16", "bfloat16", "float32", "float64"]
FLOAT_TYPES: Final[tuple[FloatType, ...]] = get_args(FloatType)
SCRATCH_HEAD: Final = 4096
"""Number of items at the start of a kernel's working memory, before the items per tuple."""

_UNIQUE_ITEMS: Final = 5
"""Number of int64 items per tuple that NumPy needs in order to find the distinct tuples of a sparse gradient."""
_SORTED_BYTES: Final = 64
"""Bytes moved per tuple by the sort: 8 bytes are read and written, about four times."""


@dataclass(frozen=True, slots=True)
class BackwardPlan:
    """The gradient of `gather` for items of a float type.

    Slices are added in the order of their indices, in float32 (float64 for float64), starting at 0.0. The sum is
    multiplied by `coefficient`, which was first rounded to the type of the sum. The product is then rounded once to the
    float type. A NaN in the result is always the positive quiet NaN without payload. So the result is bit-identical for
    all kernels and any number of threads.

    A `sparse` result contains only the slices of grad_data that an index selects, in ascending order. In that case, the
    gather has one batch.

    The fields from `batches` to `block_items` are copies of the gather's fields.
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
        """Number of items in grad_output, which is the kernel's input."""
        return self.gather.output_items

    @property
    def copied_items(self) -> int:
        """Number of items written contiguously, plus the memory traffic of sorting the tuples, expressed in items."""
        return self.output_items + self.index_tuples * _SORTED_BYTES // max(self.item_size, 1)

    @property
    def index_tuples(self) -> int:
        """Number of index tuples. Tuples shared by several batches count once."""
        gather = self.gather
        return self.tuples if self.broadcast_indices else gather.batches // gather.batches_per_set * self.tuples

    @property
    def rows(self) -> int:
        """Number of slices in the result: all slices of grad_data or, if `sparse`, the maximum number of distinct
        tuples.
        """
        return min(self.tuples, self.batch_rows) if self.sparse else self.batches * self.batch_rows

    @property
    def output_items(self) -> int:
        """Number of items that the kernel writes or, if `sparse`, the maximum number."""
        return self.rows * self.slice_items

    @property
    def output_bytes(self) -> int:
        """Number of bytes in the output items and, if `sparse`, in their flat positions and tuples."""
        own = self.output_items * self.item_size
        return own + self.rows * 8 * (1 + self.depth) if self.sparse else own

    @property
    def batch_rows(self) -> int:
        """Number of slices of grad_data in one batch."""
        return prod(self.dims)

    @property
    def sum_size(self) -> int:
        """Number of bytes in a sum, which is float64 for float64 and otherwise float32."""
        return 8 if self.float_type == "float64" else 4

    @property
    def scratch_items(self) -> int:
        """Number of int64 items that a kernel needs as working memory.

        This counts one item per tuple, two more per tuple to sort the tuples of a sparse gradient, and the sums of
        16-bit floats.
        """
        sums = 0 if self.sum_size == self.item_size else (self.output_items * self.sum_size + 7) // 8
        return SCRATCH_HEAD + self.index_tuples * (3 if self.sparse else 1) + sums

    @property
    def scratch_bytes(self) -> int:
        """Number of bytes in `scratch_items` and in the kernel's other allocations."""
        return 8 * (self.scratch_items + (_UNIQUE_ITEMS * self.index_tuples if self.sparse else 0))
