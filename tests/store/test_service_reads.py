"""The service reads a tensor that scatters change until it has one content, and waits for the disk off the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from app.api.disk_threads import DiskThreads
from app.dispatch.choose_backend import BackendChooser
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels import reference
from app.memory.budget import Budget
from app.operators.gather_plan import GatherPlan
from app.services.service import Service
from app.store import LocalStore, Resident, Store
from app.store.files import disk_writes
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer, Call
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.served import served
from tests.store.helpers import put, scatter, strings


class Cold(Store):
    """A store whose contents are larger than memory."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store

    def get(self, reference: str) -> Resident | None:
        resident = self.store.get(reference)
        assert resident is not None
        return Resident(resident.tensor, resident.etag, cold=True)

    def names(self) -> list[str]:
        return self.store.names()


def answered(store: Any, call: Call, kernel: Any, limits: Limits | None = None) -> Answer:
    budget, pool = Budget(2**30), RequestThreadPool(2, 8)
    service = Service(limits or Limits(), store, kernel, pool, BackendChooser(threads=2), budget)
    try:
        return asyncio.run(service.run(call, served(budget)))
    finally:
        pool.close()


def gather(store: Any, rows: list[int], kernel: Any = reference, limits: Limits | None = None) -> Answer:
    indices = Tensor(DTYPES["int64"], (len(rows), 1), np.array(rows, np.int64))
    return answered(store, Call("gathernd", "x", indices, (0,), "onnx-13"), kernel, limits)


class OvertakenInputs:
    """NumPy's kernel, whose first gathers a scatter of another worker into the input that `changes` name overtakes."""

    def __init__(self, other: LocalStore, changes: list[str]) -> None:
        self.other, self.changes = other, changes

    def run(self, plan: Any, data: Any, indices: Any, out: Any, *more: Any, **named: Any) -> int:
        bad = reference.run(plan, data, indices, out, *more, **named)
        if self.changes:
            name, one = self.changes.pop(0), np.ones((2, 8), np.uint8)
            scatter(self.other, name, [[0], [1]], one if name == "x" else one[:, :1].astype(np.float32), "add")
        return bad


@pytest.mark.parametrize("changes", [["x"], ["x", "scales", "scales", "x"]])
def test_inputs_that_scatters_change_are_read_again_until_all_hold_still(
    store: LocalStore, other: LocalStore, changes: list[str]
) -> None:
    put(store, "x", np.full((2, 8), 0x88, np.uint8))
    put(store, "scales", np.ones((2, 1), np.float32))
    kernel = OvertakenInputs(other, [*changes])
    indices = Tensor(DTYPES["int64"], (1,), np.array([1]))
    call = Call("gather_block_quantized", "x", indices, (0, 1, 16, 4), "onnxruntime-1", further={"scales": "scales"})
    answer = answered(store, call, kernel)
    low = changes.count("x") * (1 + changes.count("scales"))
    assert answer.output.array.tolist() == [low, 0] * 8
    assert answer.data_etag == other.etag_to_replace("x")
    assert kernel.changes == []


def test_a_scatter_that_is_half_done_is_waited_out(
    store: LocalStore, other: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(store, "x", np.zeros(4, np.int64))
    begun, go_on = threading.Event(), threading.Event()
    real = disk_writes.store_words

    def slow(mapping: Any, change: Any) -> None:
        real(mapping, change)
        resident = store.get("x")
        if resident is not None and resident.version & 1 and resident.tensor.array[0] and not resident.tensor.array[3]:
            begun.set()
            assert go_on.wait(60)

    monkeypatch.setattr(disk_writes, "store_words", slow)
    writer = threading.Thread(target=partial(scatter, other, "x", [[0], [3]], np.array([5, 5])))
    writer.start()
    assert begun.wait(60)
    seen = []

    class Late:
        """NumPy's kernel, which lets the scatter go on once it has read."""

        def run(self, plan: GatherPlan, data: Any, indices: Any, out: Any, *more: Any) -> int:
            bad = reference.run(plan, data, indices, out, *more)
            seen.append(out.tolist())
            go_on.set()
            return bad

    answer = gather(store, [0, 3], Late())
    writer.join()
    assert seen[0] == [5, 0]
    assert answer.output.array.tolist() == [5, 5]
    assert answer.data_etag == store.etag_to_replace("x")


@pytest.mark.parametrize("count", [1, 100_000])
def test_a_cold_content_is_read_off_the_event_loop(store: LocalStore, count: int) -> None:
    """A large gather is split between threads."""
    put(store, "x", np.zeros(4, np.int64))
    readers = []

    class Noting:
        def run(self, *args: Any, **kwargs: Any) -> int:
            readers.append(threading.current_thread())
            return reference.run(*args, **kwargs)

    for tables, on_the_loop in ((store, True), (Cold(store), False)):
        readers.clear()
        gather(tables, [1] * count, Noting())
        assert [reader is threading.main_thread() for reader in readers] == [on_the_loop]


def test_the_size_of_gathered_strings_is_limited_exactly(store: LocalStore) -> None:
    put(store, "x", strings("a" * 100, "b", ""))
    assert gather(store, [0] * 3, limits=Limits(output_bytes=312)).output.shape == (3,)
    with pytest.raises(GatherError, match="output_too_large"):
        gather(store, [0] * 3, limits=Limits(output_bytes=311))


def test_gathers_that_wait_for_one_stalled_tensor_leave_the_threads_to_others(store: LocalStore) -> None:
    """More of them than the default threads of asyncio, on which metrics and the tasks beside the requests wait."""
    put(store, "x", np.zeros(4, np.int64))
    put(store, "y", np.arange(4))
    resident = store.get("x")
    assert resident is not None
    stalled = StalledStore(store)
    budget, pool, threads = Budget(2**30), RequestThreadPool(2, 100), DiskThreads()
    service = Service(Limits(), stalled, reference, pool, BackendChooser(threads=2), budget)
    service.run_in_lock_thread = threads.change

    async def look_up(name: str) -> list[int]:
        indices = Tensor(DTYPES["int64"], (2, 1), np.array([1, 2], np.int64))
        call = Call("gathernd", name, indices, (0,), "onnx-13")
        answer = await service.run(call, served(budget))
        found: list[int] = answer.output.array.tolist()
        return found

    async def run() -> None:
        waiting = [asyncio.create_task(look_up("x")) for _ in range(50)]
        async with asyncio.timeout(60):
            while stalled.waiting < 2:  # noqa: ASYNC110  (threads change it)
                await asyncio.sleep(0.001)
            assert await look_up("y") == [1, 2]
            await asyncio.to_thread(int)
        stalled.free.set()
        assert await asyncio.gather(*waiting) == [[0, 0]] * 50

    try:
        asyncio.run(run())
    finally:
        stalled.free.set()
        pool.close()
        threads.shutdown()


class StalledStore(Store):
    """A store whose x changes whenever it is read, and cannot be kept from that until `free` is set."""

    def __init__(self, store: LocalStore) -> None:
        self.store = store
        self.free = threading.Event()
        self.waiting = 0

    def get(self, reference: str) -> Resident | None:
        resident = self.store.get(reference)
        return resident if resident is None or reference != "x" else ChangingResident(self, resident)

    def names(self) -> list[str]:
        return self.store.names()


class ChangingResident(Resident):
    """The content of x in a `StalledStore`."""

    def __init__(self, store: StalledStore, resident: Resident) -> None:
        super().__init__(resident.tensor, resident.etag, words=(2,))
        self.stalled = store

    def refreshed(self) -> Resident:
        return Resident(self.tensor, self.etag) if self.stalled.free.is_set() else self

    @contextmanager
    def _hold(self) -> Iterator[None]:
        self.stalled.waiting += 1
        assert self.stalled.free.wait(60)
        yield

    def exclude_writers(self) -> AbstractContextManager[object]:
        return self._hold()
