"""Which shards an explanation names is found where it holds up no other request, and is charged."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from app.cluster.router import shard_resources
from app.cluster.router.fetch_rows import RowFetcher
from app.cluster.router.router import Router
from app.cluster.router.shard_resources import SPLIT_BYTES
from app.cluster.router.sharded_tensors import ShardedTensors
from app.cluster.router.shards import Shards
from app.dispatch.choose_backend import BackendChooser
from app.dispatch.request_thread_pool import RequestThreadPool
from app.kernels import reference
from app.memory.budget import Budget
from app.telemetry.served_request import ServedRequest
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call
from app.tensors.lookup_call import Feature, LookupCall
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.cluster.test_fetch_rows import map_of
from tests.served import served

MANY = 1 << 15


async def explained_gather(router: Router, rows: Tensor, request: ServedRequest) -> Any:
    call = Call("gathernd", "t", rows, (0,), "onnx-13", "auto")
    found = router.explain(call, request.memory)
    return (await router.with_shards(found, request)).shards[0]


async def explained_lookup(router: Router, rows: Tensor, request: ServedRequest) -> Any:
    found = router.explain(LookupCall([Feature("t", rows)]), request.memory)
    explained = await router.with_shards(found, request)
    return explained.shards[0]


@pytest.mark.parametrize(("count", "thread"), [(3, "MainThread"), (MANY, "gather-")])
@pytest.mark.parametrize("explained", [explained_gather, explained_lookup])
def test_the_rows_of_many_indices_are_counted_in_a_thread_of_the_pool(
    count: int, thread: str, explained: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted_by: list[str] = []
    ranges = shard_resources.explained_ranges

    def noting(*args: Any, **kwargs: Any) -> Any:
        counted_by.append(threading.current_thread().name)
        return ranges(*args, **kwargs)

    monkeypatch.setattr(shard_resources, "explained_ranges", noting)
    pool = RequestThreadPool(2, 8)
    budget = Budget(2**30)
    tables = ShardedTensors(map_of("127.0.0.1:1", 1))
    router = Router(Limits(), tables, reference, pool, BackendChooser(threads=2), budget)
    shape = (count, 1) if explained is explained_gather else (count,)
    request = served(budget)
    router.fetcher = RowFetcher(Shards(), tables.shard_map, late_after=1.0)
    try:
        told = asyncio.run(explained(router, Tensor(DTYPES["int64"], shape, np.zeros(count, np.int64)), request))
    finally:
        pool.close()
    assert [one["tuples"] for one in told] == [count]
    assert budget.used >= (SPLIT_BYTES * MANY if count == MANY else 0)
    assert counted_by
    assert counted_by[0].startswith(thread)
