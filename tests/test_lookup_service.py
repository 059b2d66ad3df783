"""Which thread does what of a lookup."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from app.dispatch.choose_backend import BackendChooser
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels import reference
from app.memory.budget import Budget
from app.services.lookups import Lookups
from app.services.service import Service
from app.store import Resident, Store
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer
from app.tensors.lookup_call import Feature, LookupCall
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.served import served


class _OneTable(Store):
    """A store of one tensor, whatever the name."""

    def __init__(self, table: Tensor) -> None:
        self.resident = Resident(table, '"1-0"')

    def get(self, reference: str) -> Resident:
        return self.resident


def look_up(store: Store, *features: Feature) -> Answer:
    """The answer of a lookup that fills, decided for the event loop."""
    pool = RequestThreadPool(2, 8)
    chooser = BackendChooser(threads=2, force_route="loop")
    service = Service(Limits(), store, reference, pool, chooser, Budget(2**30))
    call = LookupCall(features, concat=len(features) == 1, out_of_bounds="fill")
    try:
        asked = service.run(call, served(service.budget))
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
    answer = look_up(_OneTable(table), Feature("t", rows))
    (name,) = [name for shape, name in made_by if shape == items]
    assert name.startswith(thread)
    assert answer.replaced == 1
    assert answer.output.array.reshape(2, items).tolist() == [[1.0] * items, [0.0] * items]


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("bags", [2, 1 << 17])
def test_offsets_get_the_type_of_indices_that_were_replaced(bags: int, dtype: str) -> None:
    integers = DTYPES[dtype]
    table = Tensor(DTYPES["float32"], (2, 1), np.array([3, 5], np.float32))
    rows = Tensor(integers, (2,), np.array([1, 9], integers.numpy))
    offsets = Tensor(integers, (bags,), np.array([0] + [1] * (bags - 1), integers.numpy))
    answer = look_up(_OneTable(table), Feature("t", rows, offsets, pooling="sum"))
    assert answer.replaced == 1
    assert answer.output.array.tolist() == [5.0] + [0.0] * (bags - 1)


class _Scattered(Resident):
    """A resident tensor that is scattered right after it was found to be consistent, `times` times."""

    times = 3

    def refreshed(self) -> Resident:
        return _Scattered(self.tensor, f'"1-{self.words[0] // 2}"', self.words[0], self.words)

    @property
    def is_consistent(self) -> bool:
        consistent = super().is_consistent
        if consistent and self.times:
            _Scattered.times -= 1
            _scatter(self)
        return consistent


def _scatter(resident: Resident) -> None:
    words: Any = resident.words
    words[0] += 2
    resident.tensor.array[:] += 1


class _TwoNames(_OneTable):
    """A store in which a scatter comes between two looks at the same content."""

    def get(self, reference: str) -> Resident:
        _scatter(self.resident)
        return self.resident.refreshed()


def test_a_content_by_two_names_is_read_in_one_state() -> None:
    store = _TwoNames(Tensor(DTYPES["float32"], (4, 1), np.zeros(4, np.float32)))
    store.resident = _Scattered(store.resident.tensor, '"1-0"', 0, [0])
    rows = Tensor(DTYPES["int64"], (2,), np.array([0, 3]))
    answer = look_up(store, Feature("items", rows), Feature("live", rows), Feature("items", rows))
    etags = {table.etag for table in answer.tables}
    assert len({output.array.tobytes() for output in answer.outputs.values()}) == len(etags) == 1
    assert etags == {f'"1-{int(answer.outputs["0.output"].array[0])}"'}


@pytest.mark.parametrize(("features", "remembered"), [(64, 1), (65, 0)])
def test_the_plan_of_a_lookup_with_very_many_features_is_not_remembered(features: int, remembered: int) -> None:
    pool = RequestThreadPool(2, 8)
    table = Tensor(DTYPES["float32"], (2, 1), np.ones(2, np.float32))
    service = Service(
        Limits(), _OneTable(table), reference, pool, BackendChooser(threads=2, force_route="loop"), Budget(2**30)
    )
    lookups = service.runners[LookupCall]
    assert isinstance(lookups, Lookups)
    rows = Tensor(DTYPES["int64"], (1,), np.zeros(1, np.int64))
    try:
        asked = service.run(LookupCall([Feature("t", rows)] * features), served(service.budget))
        assert asyncio.run(asked).output.shape == (1, features)
    finally:
        pool.close()
    assert len(lookups._plans) == remembered


def test_no_row_to_fill_with_is_made_where_there_are_no_bags() -> None:
    table = Tensor(DTYPES["float32"], (0, 1 << 28), np.empty(0, np.float32))
    rows = Tensor(DTYPES["int64"], (1,), np.array([3]))
    offsets = Tensor(DTYPES["int64"], (0,), np.empty(0, np.int64))
    with pytest.raises(GatherError, match="offsets_invalid"):
        look_up(_OneTable(table), Feature("t", rows, offsets, pooling="sum"))
