"""The queue in which scatters of one tensor wait, and what of it becomes a batch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from app.store.scatters.pending_scatter import (
    MAX_BATCH,
    MAX_BATCH_BYTES,
    PendingScatter,
    ScatterChange,
    Scattered,
    ScatterQueues,
    Take,
)
from app.tensors.dtypes import DTYPES
from app.tensors.tensor import Tensor
from tests.strings import packed

THIRD = MAX_BATCH_BYTES // 3


def rows_and_numbers(size: int) -> ScatterChange:
    """A scatter of 4-byte items to as many rows, of `size` bytes in all."""
    count = size // 12
    updates = Tensor(DTYPES["float32"], (count,), np.zeros(count, np.float32))
    return ScatterChange("content", np.zeros(count, np.int64), updates, 1, "none")


def one_string(size: int) -> ScatterChange:
    return ScatterChange("content", np.zeros(1, np.int64), packed(["x" * size]), 1, "none")


@pytest.mark.parametrize("change", [rows_and_numbers, one_string])
@pytest.mark.parametrize(("size", "batches"), [(THIRD - 100, [3, 2]), (THIRD + 100, [2, 2, 1]), (1000, [5])])
def test_a_batch_of_several_has_no_more_bytes_than_it_may(
    change: Callable[[int], ScatterChange], size: int, batches: list[int]
) -> None:
    found: list[int] = []

    def work(name: str, take: Take) -> None:
        taken = take(MAX_BATCH)
        found.append(len(taken))
        for scatter in taken:
            scatter.finish(Scattered("etag", 1))

    queues = ScatterQueues(work)
    queued = [PendingScatter(change(size)) for _ in range(5)]
    for one in queued:
        queues.enqueue("x", one)
    assert [queues.complete("x", one) for one in queued] == [Scattered("etag", 1)] * 5
    assert found == batches
