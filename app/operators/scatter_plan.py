"""Scatters as kernels see them: plans whose output is a copy of data with updates applied to some of it.

Updates count in the row-major order of the indices. Without a reduction the last one of a place wins; with one they are
applied one after the other, in data's type.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

from app.tensors.operator_signature import Reduction

PIECE_BYTES: Final = 1 << 14
"""Of the output at most, in whole rows, a power of two of them, for which tuples are sorted: half of a first cache."""
_NOTED_BYTES: Final = 128
"""Of a row, from which on it may be written once (`ScatterNDPlan.notes`): to copy shorter ones one behind the other
takes less than to look at each."""
_NOTED_PART: Final = 2
_NOTED_PART_PAST_CACHES: Final = 16
_REDUCED_PART_PAST_CACHES: Final = 2
_PAST_CACHES_BYTES: Final = 20 << 20
"""The rows for each tuple up to which all are written once, by an output of so many bytes: on an EPYC 2,000 of 4,000
rows of 256 bytes took 36 µs and 40 before, 1,000 of them 33 both; 12,000 of 100,000, which no cache holds, 1,207 and
1,622, all of them 1,579 and 7,382. With a reduction it takes as long as before where caches hold the output."""
_MOST_NOTED: Final = (1 << 31) - 1
"""Notes are numbers of 32 bits."""
GATHERED_BYTES: Final = 1 << 20
"""Memory for the columns that are gathered at a time, to be scattered into: half of a second cache."""
LEAST_ROW_BYTES: Final = 512
"""Bytes of a row, from which on its columns are divided among threads, or gathered."""
_MOST_GATHERED: Final = 16
"""Chunks that have such memory at most."""
_LEAST_GATHERED_BYTES: Final = 128
"""Least bytes of a row that must fit at a time."""
_GATHERED_PART: Final = 2
"""Columns are gathered if there is at least one entry for so many items of the output."""


@dataclass(frozen=True, slots=True)
class ScatterNDPlan:
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
    notes: int = field(init=False, repr=False, compare=False)
    """How many numbers of 32 bits a kernel may note of rows and tuples, so as to write each row of the output once; 0
    where it copies data first."""
    kept: Any = field(default=None, init=False, repr=False, compare=False)
    """What a kernel has made of the plan and will need again."""

    def __post_init__(self) -> None:
        # Here once, and then read many times.
        object.__setattr__(self, "rows", prod(self.dims))
        object.__setattr__(self, "notes", self._notes() if self.tuples > 0 else 0)

    def _notes(self) -> int:
        width, rows = self.slice_items * self.item_size, self.rows
        if width < _NOTED_BYTES or max(rows, self.tuples) > _MOST_NOTED:
            return 0
        past_caches = rows * width > _PAST_CACHES_BYTES
        if self.reduction == "none":
            part = _NOTED_PART_PAST_CACHES if past_caches else _NOTED_PART
            return rows if self.tuples * part >= rows else 0
        if not past_caches or width > PIECE_BYTES or self.tuples * _REDUCED_PART_PAST_CACHES < rows:
            return 0
        pieces = ((rows - 1) >> ((PIECE_BYTES // width).bit_length() - 1)) + 1
        return pieces + pieces % 2 + 2 * self.tuples

    @property
    def batches(self) -> int:
        """One: data is not cut."""
        return 1

    @property
    def broadcast_indices(self) -> bool:
        """Each tuple is used once."""
        return False

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

    @property
    def scratch_bytes(self) -> int:
        """Bytes that a kernel may need beside the output."""
        return 4 * self.notes


@dataclass(frozen=True, slots=True)
class ScatterElementsPlan:
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
    scratch_bytes: int = field(init=False, repr=False, compare=False)
    """Bytes that a kernel may need beside the output: GATHERED_BYTES for each chunk whose columns it gathers."""
    kept: Any = field(default=None, init=False, repr=False, compare=False)
    """What a kernel has made of the plan and will need again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "index_items", prod(self.sizes))
        object.__setattr__(self, "scratch_bytes", GATHERED_BYTES * self._gathered())

    def _gathered(self) -> int:
        """How many chunks may gather their columns: 0 unless the output fills a second cache, enough columns fit at a
        time, and many items change.
        """
        if self.strides != (0, 1) or self.data_items != self.axis_size * self.axis_stride or self.item_size > 8:
            return 0
        if self.axis_size * _LEAST_GATHERED_BYTES > GATHERED_BYTES:
            return 0
        if self.axis_stride * self.item_size < LEAST_ROW_BYTES:
            return 0
        if self.index_items * _GATHERED_PART < self.data_items:
            return 0
        return min(_MOST_GATHERED, self.output_bytes // GATHERED_BYTES // 2)

    @property
    def batches(self) -> int:
        """One: data is not cut."""
        return 1

    @property
    def tuples(self) -> int:
        """Entries of indices."""
        return self.index_items

    update_items = tuples

    @property
    def dims(self) -> tuple[int, ...]:
        """The size of the scatter's axis."""
        return (self.axis_size,)

    @property
    def slice_items(self) -> int:
        """One: each update is an item."""
        return 1

    depth = slice_items

    @property
    def broadcast_indices(self) -> bool:
        """Each entry is used once."""
        return False

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
