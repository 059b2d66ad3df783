"""A lookup of one content by several names reads it in one state, though scatters come between."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from app.dispatch.choose_backend import BackendChooser
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels import reference
from app.memory.budget import Budget
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


def test_no_row_to_fill_with_is_made_where_there_are_no_bags() -> None:
    table = Tensor(DTYPES["float32"], (0, 1 << 28), np.empty(0, np.float32))
    rows = Tensor(DTYPES["int64"], (1,), np.array([3]))
    offsets = Tensor(DTYPES["int64"], (0,), np.empty(0, np.int64))
    with pytest.raises(GatherError, match="offsets_invalid"):
        look_up(_OneTable(table), Feature("t", rows, offsets, pooling="sum"))
