"""What finds the places of an error takes little memory, however large the request is: nothing of it is charged."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from app.errors import GatherError
from app.operators.lookup_plan import check_indices, check_offsets
from app.tensors.dtypes import DTYPES
from app.tensors.lookup_call import Feature
from app.tensors.tensor import Tensor

COUNT = 4_000_000
LEAST = 8 << 20


def vector(values: np.ndarray[tuple[int], np.dtype[np.int32]]) -> Tensor:
    return Tensor(DTYPES["int32"], values.shape, values)


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    work()
    found = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return found


def wrong_offsets(values: np.ndarray[tuple[int], np.dtype[np.int32]], place: int) -> None:
    values[0] = 0
    feature = Feature("a", vector(np.zeros(9, np.int32)), vector(values), pooling="sum")

    def check() -> None:
        with pytest.raises(GatherError) as refused:
            check_offsets(feature)
        assert refused.value.places[0].position == (place,)

    assert peak(check) < LEAST


def test_of_wrong_offsets() -> None:
    wrong_offsets(np.full(COUNT, 10, np.int32), 1)
    wrong_offsets(np.where(np.arange(COUNT) % 2, 9, 8).astype(np.int32), 2)
    last = np.zeros(COUNT, np.int32)
    last[-1] = 10
    wrong_offsets(last, COUNT - 1)
    for first_of_block in (1 << 18, (1 << 18) + 1, (1 << 18) - 1):
        falling = np.full(COUNT, 9, np.int32)
        falling[first_of_block:] = 8
        wrong_offsets(falling, first_of_block)


def test_of_indices_of_a_lookup() -> None:
    feature = Feature("a", vector(np.full(COUNT, 7, np.int32)))

    def check() -> None:
        with pytest.raises(GatherError) as refused:
            check_indices(feature, 7)
        assert refused.value.total == COUNT

    assert peak(check) < LEAST
