"""The plan of a gather, the kernels' input: a frozen dataclass of plain integers, for both GatherND and Gather.

GatherND with batch_dims b and tuples of length k reads data as [batches, *dims, slice] and indices as [batches, tuples,
k]. Gather along axis a is the same with b = a and k = 1, except that all batches share their tuples
(`broadcast_indices`). If Gather also has batch_dims, but fewer than a, each group of consecutive batches shares its
tuples (`batches_per_set`). Kernels need not know which operator they run.

An operator that does not fit this plan has its own plan, a frozen dataclass with the attributes of `Plan`, and its own
kernel function (see `app.kernels.Kernel`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import ClassVar, Protocol


class Plan(Protocol):
    """The attributes of a plan that the service and the choice of a route read. Sizes are in items unless noted.

    `batches`, `tuples`, `dims`, `slice_items`, `broadcast_indices` and `wrap` describe a `GatherPlan` that takes about
    as long to run. `copied_items` is the number of additional items of data that are copied contiguously.
    `scratch_bytes` is the memory that a kernel may need in addition to the output.
    """

    @property
    def batches(self) -> int: ...
    @property
    def tuples(self) -> int: ...
    @property
    def dims(self) -> tuple[int, ...]: ...
    @property
    def slice_items(self) -> int: ...
    @property
    def item_size(self) -> int: ...
    @property
    def broadcast_indices(self) -> bool: ...
    @property
    def wrap(self) -> bool: ...
    @property
    def depth(self) -> int: ...
    @property
    def index_items(self) -> int: ...
    @property
    def block_items(self) -> int: ...
    @property
    def data_items(self) -> int: ...
    @property
    def copied_items(self) -> int: ...
    @property
    def output_items(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...
    @property
    def scratch_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class GatherPlan:
    """data is [batches, *dims, slice_items], indices are [sets, tuples, depth].

    The output is [batches, tuples, slice_items].

    `dims` are the sizes of the indexed axes. `item_size` is in bytes (1, 2, 4, 8 or 16). With `broadcast_indices`, all
    batches share one set of tuples. With `wrap`, an index in [-s, -1] counts from the end; without it, the index is out
    of bounds. `batches_per_set` is the number of consecutive batches that share a set of tuples. It divides `batches`,
    or is 0 if all batches share one set.
    """

    batches: int
    tuples: int
    dims: tuple[int, ...]
    slice_items: int
    item_size: int
    broadcast_indices: bool
    wrap: bool
    batches_per_set: int = 1
    copied_items: ClassVar[int] = 0
    scratch_bytes: ClassVar[int] = 0
    output_items: int = field(init=False)
    output_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        if self.broadcast_indices:
            object.__setattr__(self, "batches_per_set", 0)
        items = self.batches * self.tuples * self.slice_items
        object.__setattr__(self, "output_items", items)
        object.__setattr__(self, "output_bytes", items * self.item_size)

    @property
    def depth(self) -> int:
        """Length of an index tuple, k."""
        return len(self.dims)

    @property
    def index_items(self) -> int:
        """Number of items in indices, each of which is a component to check."""
        sets = 1 if self.broadcast_indices else self.batches // self.batches_per_set
        return self.tuples * len(self.dims) * sets

    @property
    def block_items(self) -> int:
        """Number of items of data in one batch."""
        return prod(self.dims) * self.slice_items

    @property
    def data_items(self) -> int:
        """Number of items in data."""
        return self.batches * self.block_items


class OneBatchPlan:
    """Attributes of plans whose data is not divided into batches: each tuple is used once."""

    __slots__ = ()

    batches: ClassVar[int] = 1
    broadcast_indices: ClassVar[bool] = False


class SingleIndexPlan(OneBatchPlan):
    """Attributes of plans whose tuples are single entries. Each entry selects one item along an axis."""

    __slots__ = ()

    depth: ClassVar[int] = 1
    slice_items: ClassVar[int] = 1
    scratch_bytes: ClassVar[int] = 0
    axis_size: int

    @property
    def dims(self) -> tuple[int, ...]:
        """The size of the axis."""
        return (self.axis_size,)
