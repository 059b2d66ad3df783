"""A scatter to a table in row ranges, cut into the part of each range; no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.cluster.range_scatter import RangeScatter, ScatterOrder
from app.cluster.shard_map import RowRange, ShardedVersion
from app.operators.scatternd import plan_scatter
from app.tensors.dtypes import DType
from app.tensors.operator_signature import Reduction
from app.tensors.scatter_call import ScatterCall


@dataclass(frozen=True, slots=True)
class ScatterPart:
    """The updates for the rows `start` to `stop` - 1 of a table, each with the slice that it goes to.

    Slices are counted from the start of the table, `row_slices` of them in each row; `updates` is [updates, items of a
    slice]. Updates are in the order of the request.
    """

    start: int
    stop: int
    slices: NDArray[np.int64]
    updates: NDArray[Any]
    row_slices: int

    def cut(self, ranges: Sequence[RowRange]) -> list[ScatterPart]:
        """The parts of those ranges that have some of the updates; the ranges cover the rows."""
        if not len(self.slices):
            return []
        if len(ranges) == 1:
            return [ScatterPart(ranges[0].start, ranges[0].stop, self.slices, self.updates, self.row_slices)]
        stops = np.array([one.stop for one in ranges], np.int64) * self.row_slices
        numbers = np.searchsorted(stops, self.slices, "right").astype(np.uint16)  # 16 bits are sorted by counting
        order = np.argsort(numbers, kind="stable")
        counts = np.bincount(numbers, minlength=len(ranges))
        parts = []
        end = 0
        for number in np.flatnonzero(counts).tolist():
            begin, end = end, end + int(counts[number])
            places, one = order[begin:end], ranges[number]
            parts.append(ScatterPart(one.start, one.stop, self.slices[places], self.updates[places], self.row_slices))
        return parts

    def order(
        self, dtype: DType, reduction: Reduction, epoch: int, key: str, digest: str, if_sequence: int | None
    ) -> RangeScatter:
        """What the primary of the range is asked."""
        count, width = self.updates.shape
        head = ScatterOrder(epoch, dtype, count, width, reduction, key, digest, if_sequence)
        return RangeScatter(head, self.slices - self.start * self.row_slices, self.updates.reshape(-1))


def judged(version: ShardedVersion, call: ScatterCall) -> ScatterPart:
    """The whole of a scatter to a version. Raises what `plan_scatter` raises."""
    plan = plan_scatter(version.dtype, version.shape, call)
    updates = call.updates.array.reshape(len(plan.rows), plan.slice_items)
    row_slices = prod(version.shape[1 : call.indices.shape[-1]])
    return ScatterPart(0, version.rows, plan.rows, updates, row_slices)
