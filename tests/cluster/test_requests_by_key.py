"""A router refuses requests that name rows by key: tables of a cluster have no keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from app.cluster.router.router import Router
from app.cluster.router.sharded_tensors import ShardedTensors
from app.dispatch.choose_backend import BackendChooser
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels import reference
from app.memory.budget import Budget
from app.tensors.by_key import ByKey
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call
from app.tensors.lookup_call import Feature, LookupCall
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.cluster.test_fetch_rows import map_of
from tests.served import served

KEYS = Tensor(DTYPES["int64"], (1,), np.zeros(1, np.int64))


@pytest.mark.parametrize(
    "call",
    [
        Call("gather", "t", KEYS, (0,), "onnx-13", by_key=ByKey()),
        LookupCall([Feature("t", KEYS), Feature("t", KEYS, by_key=ByKey())]),
    ],
)
def test_a_router_refuses_keys(call: Any) -> None:
    pool = RequestThreadPool(1, 1)
    tables = ShardedTensors(map_of("127.0.0.1:1", 1))
    router = Router(Limits(), tables, reference, pool, BackendChooser(threads=2), Budget(2**30))
    try:
        for ask in (router.run, lambda call, request: router.explain(call, request.memory)):
            with pytest.raises(GatherError) as caught:
                ask(call, served(router.budget))
            assert caught.value.code == "not_implemented"
    finally:
        pool.close()
