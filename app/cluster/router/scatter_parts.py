"""Divide a scatter, upsert or removal into a part for each range. Does no I/O."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.cluster.key_placement import HASHES, KeyPlacement, first_hashes
from app.cluster.range_scatter import NO_ROWS, RangeScatter, ScatterOrder, keys_of
from app.cluster.router.key_columns import column_of
from app.cluster.shard_map import RowRange, ShardedVersion
from app.keys.key_column import KeyColumn
from app.operators.scatters import plan_scatter, row_items
from app.tensors.dtypes import DType
from app.tensors.operator_signature import Reduction
from app.tensors.scatter_call import KeyedCall, ScatterCall


@dataclass(frozen=True, slots=True)
class ScatterPart:
    """The updates for the rows `start` to `stop` - 1 of a table, each with its target slice.

    Slices are numbered from the start of the table, and each row has `row_slices` of them. `updates` has the shape
    [updates, items of a slice] and is in the order of the request.
    """

    start: int
    stop: int
    slices: NDArray[np.int64]
    updates: NDArray[Any]
    row_slices: int

    @property
    def is_empty(self) -> bool:
        """Whether the part has no updates."""
        return not len(self.slices)

    def cut(self, ranges: Sequence[RowRange]) -> list[ScatterPart]:
        """Return a part for each range that has any of the updates. The ranges must cover the rows."""
        if self.is_empty:
            return []
        if len(ranges) == 1:
            return [replace(self, start=ranges[0].start, stop=ranges[0].stop)]
        stops = np.array([one.stop for one in ranges], np.int64) * self.row_slices
        numbers = np.searchsorted(stops, self.slices, "right")
        return [
            ScatterPart(one.start, one.stop, self.slices[places], self.updates[places], self.row_slices)
            for one, places in _split_by_range(ranges, numbers)
        ]

    def order(
        self, dtype: DType, reduction: Reduction, epoch: int, key: str, digest: str, if_sequence: int | None
    ) -> RangeScatter:
        """Return the request to the primary of the range."""
        count, width = self.updates.shape
        head = ScatterOrder(epoch, dtype, count, width, reduction, key, digest, if_sequence)
        return RangeScatter(head, self.slices - self.start * self.row_slices, self.updates.reshape(-1))


@dataclass(frozen=True, slots=True)
class KeyedPart:
    """The keys whose hashes are from `start` to `stop` - 1, in the order of the request, and their rows.

    `updates` has the shape [keys, items of a row], or is None for a removal. `placement` determines the hashes of the
    keys.
    """

    start: int
    stop: int
    column: KeyColumn
    updates: NDArray[Any] | None
    row_items: int
    placement: KeyPlacement

    @property
    def is_empty(self) -> bool:
        """Whether the part has no keys."""
        return not len(self.column)

    def cut(self, ranges: Sequence[RowRange]) -> list[KeyedPart]:
        """Return a part for each range that has any of the keys. The ranges must cover the hashes."""
        if self.is_empty:
            return []
        if len(ranges) == 1:
            return [replace(self, start=ranges[0].start, stop=ranges[0].stop)]
        numbers = self.placement.range_numbers(self.column, first_hashes([one.start for one in ranges]))
        return [
            replace(
                self, start=one.start, stop=one.stop, column=self.column.take(places),
                updates=None if self.updates is None else self.updates[places],
            )
            for one, places in _split_by_range(ranges, numbers)
        ]  # fmt: skip

    def order(
        self, dtype: DType, reduction: Reduction, epoch: int, key: str, digest: str, if_sequence: int | None
    ) -> RangeScatter:
        """Return the request to the primary of the range."""
        keys, size = keys_of(self.column)
        head = ScatterOrder(
            epoch, dtype, 0, self.row_items, reduction, key, digest, if_sequence, self.column.dtype, len(self.column),
            size, self.updates is None,
        )  # fmt: skip
        updates = np.empty(0, dtype.numpy) if self.updates is None else self.updates.reshape(-1)
        return RangeScatter(head, NO_ROWS, updates, keys)


Part: TypeAlias = ScatterPart | KeyedPart


def _split_by_range(
    ranges: Sequence[RowRange], numbers: NDArray[np.intp]
) -> Iterator[tuple[RowRange, NDArray[np.intp]]]:
    """Yield each range that has items, with the positions of those items.

    `numbers` holds the range index of each item.
    """
    numbers = numbers.astype(np.uint16)  # NumPy sorts 16-bit integers with a radix sort
    order = np.argsort(numbers, kind="stable")
    counts = np.bincount(numbers, minlength=len(ranges))
    end = 0
    for number in np.flatnonzero(counts).tolist():
        begin, end = end, end + int(counts[number])
        yield ranges[number], order[begin:end]


def whole_keyed_change(version: ShardedVersion, call: KeyedCall) -> KeyedPart:
    """Return an undivided upsert or removal. Its keys have the type of the version's keys.

    Raises the errors of `row_items`.
    """
    assert version.keys is not None
    items = row_items(version.dtype, version.shape, call)
    column = column_of([call.keys], version.keys.dtype)
    updates = None if call.updates is None else call.updates.array.reshape(len(column), items)
    return KeyedPart(0, HASHES, column, updates, items, version.keys)


def whole_scatter(version: ShardedVersion, call: ScatterCall) -> ScatterPart:
    """Return an undivided scatter to a version. Raises the errors of `plan_scatter`."""
    plan = plan_scatter(version.dtype, version.shape, call)
    updates = call.updates.array.reshape(len(plan.rows), plan.slice_items)
    row_slices = prod(version.shape[1 : call.indices.shape[-1]])
    return ScatterPart(0, version.rows, plan.rows, updates, row_slices)
