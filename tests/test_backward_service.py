"""Which thread does what of a gradient."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from app.dispatch.choose_backend import BackendChooser
from app.dispatch.request_thread_pool import RequestThreadPool
from app.kernels import reference
from app.memory.budget import Budget
from app.services.service import Service
from app.store import Store
from app.tensors.backward_call import BackwardCall
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.served import served


@pytest.mark.parametrize(("tuples", "thread"), [(64, "MainThread"), (1 << 15, "gather-")])
def test_many_places_of_a_sparse_gradient_become_tuples_in_a_thread_of_the_pool(
    tuples: int, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    divided_by: list[str] = []
    divmod_ = np.divmod

    def noting(*args: Any, **kwargs: Any) -> Any:
        divided_by.append(threading.current_thread().name)
        return divmod_(*args, **kwargs)

    pool = RequestThreadPool(2, 8)
    chooser = BackendChooser(threads=1, force_route="loop")
    service = Service(Limits(), Store(), reference, pool, chooser, Budget(2**30))
    indices = np.stack([np.arange(tuples), np.arange(tuples) % 3], 1)
    call = BackwardCall(
        "gathernd_backward",
        Tensor(DTYPES["int64"], (tuples, 2), indices.reshape(-1)),
        Tensor(DTYPES["float32"], (tuples,), np.ones(tuples, np.float32)),
        (tuples, 3),
        (0,),
        1.0,
        True,
        "onnx-13",
    )
    monkeypatch.setattr(np, "divmod", noting)
    try:
        asked = service.run(call, served(service.budget))
        outputs = asyncio.run(asked).outputs
    finally:
        pool.close()
    assert outputs["grad_indices"].array.reshape(-1, 2).tolist() == indices.tolist()
    assert divided_by[-1].startswith(thread)
