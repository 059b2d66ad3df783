"""Which thread does what of a lookup."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from app.dispatch.choose_backend import BackendChooser
from app.dispatch.request_thread_pool import RequestThreadPool
from app.kernels import numpy_cpu
from app.lookup_service import LookupService
from app.memory.budget import Budget, MemoryReservation
from app.service import Service
from app.store import EmptyStore, Resident
from app.telemetry.server_timing import RequestTimings
from app.tensors.dtypes import DTYPES
from app.tensors.lookup_call import Feature, LookupAnswer, LookupCall
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor


class _OneTable(EmptyStore):
    """A store of one tensor, whatever the name."""

    def __init__(self, table: Tensor) -> None:
        self.resident = Resident(table, '"1-0"')

    def get(self, reference: str) -> Resident:
        return self.resident


def look_up(table: Tensor, feature: Feature) -> LookupAnswer:
    """The answer of a lookup of one feature that fills, decided for the event loop."""
    pool = RequestThreadPool(2, 8)
    chooser = BackendChooser(threads=2, force_route="loop")
    service = Service(Limits(), _OneTable(table), numpy_cpu, pool, chooser, Budget(2**30))
    call = LookupCall([feature], out_of_bounds="fill")
    try:
        asked = LookupService(service, numpy_cpu).lookup(
            call, RequestTimings(0.0, 1e12), MemoryReservation(service.budget)
        )
        return asyncio.run(asked)
    finally:
        pool.close()


@pytest.mark.parametrize(("items", "thread"), [(64, "MainThread"), (1 << 17, "gather-")])
def test_a_large_row_to_fill_with_is_made_by_a_thread_of_the_pool(
    items: int, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_by: list[tuple[Any, str]] = []
    full = np.full

    def noting(shape: Any, *args: Any, **kwargs: Any) -> Any:
        made_by.append((shape, threading.current_thread().name))
        return full(shape, *args, **kwargs)

    monkeypatch.setattr(np, "full", noting)
    table = Tensor(DTYPES["float32"], (2, items), np.ones(2 * items, np.float32))
    rows = Tensor(DTYPES["int64"], (2,), np.array([1, 2]))
    answer = look_up(table, Feature("t", rows))
    (name,) = [name for shape, name in made_by if shape == items]
    assert name.startswith(thread)
    assert answer.replaced == 1
    assert answer.outputs[0].array.reshape(2, items).tolist() == [[1.0] * items, [0.0] * items]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("bags", [2, 1 << 17])
def test_offsets_get_the_type_of_indices_that_were_replaced(bags: int, dtype: str) -> None:
    integers = DTYPES[dtype]
    table = Tensor(DTYPES["float32"], (2, 1), np.array([3, 5], np.float32))
    rows = Tensor(integers, (2,), np.array([1, 9], integers.numpy))
    offsets = Tensor(integers, (bags,), np.array([0] + [1] * (bags - 1), integers.numpy))
    answer = look_up(table, Feature("t", rows, offsets, pooling="sum"))
    assert answer.replaced == 1
    assert answer.outputs[0].array.tolist() == [5.0] + [0.0] * (bags - 1)
