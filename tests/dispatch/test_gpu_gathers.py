from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any, TypeVar

import numpy as np
import pytest

from app.dispatch.choose_backend import NEVER, BackendChooser, Facts, Size
from app.dispatch.gpu_gathers import Gpu, Outcome, name_of
from app.dispatch.measured_rates import measure_gpu
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels import reference
from app.kernels.gpu_interface import OutOfDeviceMemory
from app.memory.budget import Budget
from app.operators.gather_plan import GatherPlan
from app.services.service import Service
from app.store import LocalStore, Resident, Store
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer, Call, Device
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.dispatch.fake_device import FakeDevice
from tests.served import served
from tests.store.helpers import put, scatter

Result = TypeVar("Result")
ROWS = 1000
WIDTH = 16
FAST = Size(items=10_000, bytes=10_000 * WIDTH * 4)
"""A device that gains from 10,000 rows on."""


class Stored:
    """A resident tensor of a real store, all of whose items are 100 times its number plus one for each scatter."""

    def __init__(self, store: LocalStore, number: int = 0, rows: int = ROWS, name: str = "") -> None:
        self.store = store
        self.name = name or f"t{number}"
        self.number = number
        self.rows = rows
        self.scatters = 0
        self.held = False
        self.holds = 0
        self.put()

    def put(self) -> None:
        self.scatters = 0
        put(self.store, self.name, np.full((self.rows, WIDTH), 100 * self.number, np.float32))

    def scatter(self) -> None:
        self.scatters += 1
        items = np.full((self.rows, WIDTH), 100 * self.number + self.scatters, np.float32)
        scatter(self.store, self.name, np.arange(self.rows)[:, None], items)

    def at(self) -> Seen:
        resident = self.store.get(self.name)
        assert resident is not None
        return Seen(self, resident)

    @property
    def etag(self) -> str:
        return self.at().etag

    @property
    def tensor(self) -> Tensor:
        return self.at().tensor


class Seen:
    """`Stored` at one moment, which counts how often writers were kept out."""

    def __init__(self, content: Stored, resident: Resident) -> None:
        self.content = content
        self.resident = resident
        self.etag = resident.etag
        self.tensor = resident.tensor
        self.cold = resident.cold
        self.data_version = resident.data_version

    @property
    def is_consistent(self) -> bool:
        return self.resident.is_consistent

    def refreshed(self) -> Seen:
        return Seen(self.content, self.resident.refreshed())

    @contextmanager
    def _hold(self) -> Iterator[None]:
        with self.resident.exclude_writers():
            self.content.held = True
            self.content.holds += 1
            yield
            self.content.held = False

    def exclude_writers(self) -> AbstractContextManager[object]:
        return self._hold()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    made = LocalStore(tmp_path / "store", Limits())
    made.open()
    yield made
    made.close()


def plan_of(count: int, rows: int = ROWS) -> GatherPlan:
    return GatherPlan(1, count, (rows,), WIDTH, 4, False, True)


class Harness:
    """A `Gpu` on a fake device, with the calls that a service makes."""

    def __init__(self, memory: int = 1 << 30, threshold: Size = FAST) -> None:
        self.device = FakeDevice(memory)
        self.chooser = BackendChooser(threads=1, no_gpu=None, gpu_memory=memory, gpu_from=threshold)
        self.gpu = Gpu(self.device, threshold, 10)
        self.gpu.on_failure = self.stop
        self.gpu.on_fallback = self.count_fallback
        self.fallbacks = 0

    def count_fallback(self) -> None:
        self.fallbacks += 1

    def stop(self, why: str) -> None:
        self.chooser = replace(self.chooser, no_gpu=why)

    async def call(self, asked: Device, content: Stored, count: int = 100, name: str = "") -> Outcome | None:
        """What a lookup comes to: None where it is for the CPU."""
        indices = np.arange(count) % content.rows
        seen = content.at()
        return await self._call(asked, name or content.name, seen.tensor, seen, indices)

    async def inline(self, asked: Device, data: Tensor, indices: np.ndarray) -> Outcome | None:
        """The same for data in the request."""
        return await self._call(asked, data, data, None, indices)

    async def _call(
        self, asked: Device, given: str | Tensor, data: Tensor, content: Seen | None, indices: np.ndarray
    ) -> Outcome | None:
        shaped = Tensor(DTYPES["int64"], (len(indices), 1), indices)
        call = Call("gathernd", given, shaped, (0,), "onnx-13", asked)
        plan = plan_of(len(indices), data.shape[0])
        on_gpu = content is not None and self.gpu.has_copy(content.etag)
        decision = self.chooser.decide(plan, Facts(asked, on_gpu=on_gpu))
        if content is not None:
            self.gpu.count_missed(name_of(call), content, decision.missed_bytes)
        if decision.device == "cpu" or decision.refused is not None:
            return None
        out = np.empty(plan.output_items, data.dtype.carrier)
        return await self.gpu.gather(call, plan, data, content, out, lambda: None)


def run(harness: Harness, script: Callable[[], Awaitable[Result]]) -> Result:
    async def main() -> Result:
        try:
            return await script()
        finally:
            harness.gpu.close()

    return asyncio.run(main())


def value(outcome: Outcome | None) -> float:
    assert outcome is not None
    assert outcome.bad == -1
    values = np.unique(outcome.out.view(np.float32))
    assert values.size == 1
    return float(values[0])


def test_a_request_for_the_device_gets_it_and_the_tensor_is_sent_once(store: LocalStore) -> None:
    harness = Harness()
    content = Stored(store, 3)

    async def script() -> None:
        for _ in range(3):
            assert value(await harness.call("gpu", content, count=1)) == 300

    run(harness, script)
    assert harness.device.done == ["upload", "run", "run", "run"]


@pytest.mark.parametrize("removed", [False, True])
def test_a_tensor_uploaded_anew_is_never_taken_for_what_it_was(store: LocalStore, removed: bool) -> None:
    harness = Harness()
    content = Stored(store, 1)

    async def script() -> None:
        content.scatter()
        assert value(await harness.call("gpu", content)) == 101
        if removed:
            store.delete(content.name)
        content.put()
        assert value(await harness.call("gpu", content)) == 100
        content.scatters = 7
        content.scatter()
        assert value(await harness.call("gpu", content)) == 108

    run(harness, script)


def test_copies_that_no_name_has_any_more_are_dropped_and_others_stay(store: LocalStore) -> None:
    harness = Harness()
    old, other = Stored(store, 1), Stored(store, 2)

    async def script() -> None:
        await harness.call("gpu", old, name="a")
        await harness.call("gpu", old, name="b")
        await harness.call("gpu", other)
        etags = {"a": "another", "b": old.etag, "t2": other.etag}
        harness.gpu.copies.sweep(etags.get)
        assert harness.gpu.has_copy(old.etag)
        etags["b"] = "another"
        harness.gpu.copies.sweep(etags.get)
        assert not harness.gpu.has_copy(old.etag)
        assert harness.gpu.has_copy(other.etag)

    run(harness, script)
    assert harness.device.held == 0


def test_the_copy_used_longest_ago_goes_when_room_is_short(store: LocalStore) -> None:
    size = ROWS * WIDTH * 4
    harness = Harness(memory=3 * size)
    contents = [Stored(store, number) for number in range(4)]

    async def script() -> None:
        for number in (0, 1, 0, 2):
            await harness.call("gpu", contents[number], count=1)
        assert [harness.gpu.has_copy(content.etag) for content in contents] == [True, False, True, False]
        await harness.call("gpu", contents[3], count=1)
        assert [harness.gpu.has_copy(content.etag) for content in contents] == [False, False, True, True]

    run(harness, script)
    assert harness.gpu.copies.evictions == 2


def test_an_output_makes_room_for_itself_but_not_in_the_data_that_it_reads(store: LocalStore) -> None:
    size = ROWS * WIDTH * 4
    harness = Harness(memory=3 * size)

    async def script() -> None:
        one, two = Stored(store, 1), Stored(store, 2)
        await harness.call("gpu", one, count=1)
        assert value(await harness.call("gpu", two, count=ROWS)) == 200
        assert not harness.gpu.has_copy(one.etag)
        assert harness.gpu.has_copy(two.etag)
        with pytest.raises(GatherError) as refused:
            await harness.call("gpu", two, count=3 * ROWS)
        assert refused.value.code == "overloaded"
        assert harness.gpu.has_copy(two.etag)

    run(harness, script)


def test_a_tensor_larger_than_the_device_drives_nothing_out(store: LocalStore) -> None:
    size = ROWS * WIDTH * 4
    harness = Harness(memory=2 * size)

    async def script() -> None:
        one = Stored(store, 1)
        await harness.call("gpu", one, count=1)
        with pytest.raises(GatherError, match="more than") as refused:
            await harness.call("gpu", Stored(store, 2, rows=3 * ROWS), count=1)
        assert refused.value.code == "overloaded"
        assert harness.gpu.has_copy(one.etag)

    run(harness, script)


def test_a_tensor_moves_to_the_device_once_lookups_have_read_as_many_bytes_as_it_has(store: LocalStore) -> None:
    harness = Harness()
    content = Stored(store, 1, rows=300_000)
    missed = harness.chooser.decide(plan_of(10_000, content.rows)).missed_bytes
    assert 0 < 3 * missed < content.tensor.items.nbytes

    async def script() -> int:
        lookups = 0
        while not harness.gpu.has_copy(content.etag):
            assert await harness.call("auto", content, count=10_000) is None
            lookups += 1
            await asyncio.gather(*harness.gpu._copy_tasks)
        assert value(await harness.call("auto", content, count=10_000)) == 100
        return lookups

    assert run(harness, script) == -(-content.tensor.items.nbytes // missed)
    assert harness.device.done == ["upload", "run"]


def test_a_copy_aside_that_fails_harms_nobody_and_is_tried_again_later(store: LocalStore) -> None:
    harness = Harness()
    content = Stored(store, 1, rows=300_000)

    def short(name: str) -> None:
        raise OutOfDeviceMemory("no")

    async def earn(tries: int) -> None:
        while harness.device.done.count("upload") < tries:
            assert await harness.call("auto", content, count=10_000) is None
            await asyncio.gather(*harness.gpu._copy_tasks)

    async def script() -> None:
        harness.device.fails = short
        await earn(2)
        assert harness.fallbacks == 0
        harness.device.fails = lambda name: None
        await earn(3)
        assert harness.gpu.has_copy(content.etag)

    run(harness, script)


def test_lookups_while_a_copy_is_on_its_way_run_on_the_cpu_and_send_nothing_more(store: LocalStore) -> None:
    harness = Harness()
    content = Stored(store, 1, rows=300_000)
    go = threading.Event()

    def wait(name: str) -> None:
        go.wait(60)

    async def script() -> None:
        harness.device.fails = wait
        for _ in range(100):
            assert await harness.call("auto", content, count=10_000) is None
        assert len(harness.gpu._copy_tasks) == 1
        go.set()
        await asyncio.gather(*harness.gpu._copy_tasks)

    run(harness, script)
    assert harness.device.done == ["upload"]


def test_what_does_not_fit_is_not_even_tried_where_the_service_may_choose(store: LocalStore) -> None:
    size = ROWS * WIDTH * 4
    harness = Harness(memory=5 * size)

    async def script() -> None:
        await harness.call("gpu", Stored(store, 1), count=1)
        done = len(harness.device.done)
        assert await harness.call("auto", Stored(store, 1), count=100_000) is None
        assert len(harness.device.done) == done

    run(harness, script)
    assert harness.fallbacks == 0


@pytest.mark.parametrize("times", [1, 1000])
def test_content_that_changes_while_it_is_copied_is_copied_again_with_writers_kept_out(
    store: LocalStore, times: int
) -> None:
    content = Stored(store, 1)
    left, before = [times], content.etag
    device = FakeDevice(1 << 30)

    def scatter(name: str) -> None:
        if name == "upload" and left[0] and not content.held:
            left[0] -= 1
            content.scatter()

    device.fails = scatter
    pool = RequestThreadPool(2, 8)
    service = Service(Limits(), _Only(content), reference, pool, BackendChooser(threads=1), Budget(2**30))
    gpu = Gpu(device, FAST, 10)
    service.use_gpu(gpu)
    indices = Tensor(DTYPES["int64"], (2, 1), np.arange(2))

    async def main() -> Answer:
        return await service.run(Call("gathernd", content.name, indices, (0,), "onnx-13", "gpu"), served())

    try:
        answer = asyncio.run(main())
        assert np.unique(answer.output.array).tolist() == [101]
        assert answer.data_etag == content.etag
        assert gpu.has_copy(content.etag)
        assert not gpu.has_copy(before)
        assert content.holds == 1
    finally:
        gpu.close()
        pool.close()


class _Only(Store):
    """A store of one tensor."""

    def __init__(self, content: Stored) -> None:
        self.content = content

    def get(self, reference: str) -> Any:
        return self.content.at()


def test_lookups_of_one_tensor_at_once_send_it_once(store: LocalStore) -> None:
    harness = Harness()
    content = Stored(store, 1)
    harness.device.fails = lambda name: sleep(0.02)

    async def script() -> None:
        outcomes = await asyncio.gather(*(harness.call("gpu", content) for _ in range(8)))
        assert [value(outcome) for outcome in outcomes] == [100] * 8

    run(harness, script)
    assert harness.device.done.count("upload") == 1


def test_too_many_at_once_are_refused(store: LocalStore) -> None:
    harness = Harness()
    go = threading.Event()

    def wait(name: str) -> None:
        go.wait(60)

    harness.device.fails = wait

    async def script() -> None:
        calls = [asyncio.ensure_future(harness.call("gpu", Stored(store, 1))) for _ in range(15)]
        refused, going_on = await asyncio.wait(calls, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert [getattr(call.exception(), "code", None) for call in refused] == ["overloaded"]
        go.set()
        await asyncio.gather(*going_on)

    run(harness, script)


@pytest.mark.parametrize("is_slow", [True, False])
def test_a_device_takes_gathers_of_the_size_from_which_on_it_was_measured_to_gain(is_slow: bool) -> None:
    device = FakeDevice(memory=1 << 22)
    kernel = SlowKernel(0 if is_slow else 0.02)
    if is_slow:
        device.fails = lambda name: sleep(0.02 if name == "run" else 0)
    found = measure_gpu(device, kernel, 1, nbytes=1 << 16)
    assert found == (NEVER if is_slow else Size(64, float("inf")))  # of 64 KiB there are no 64 long rows
    assert device.held == 0


class SlowKernel:
    """NumPy's kernel, which takes so many seconds longer."""

    name = "slow"
    splits = False

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def run(self, *arguments: Any, **further: Any) -> int:
        sleep(self.seconds)
        return reference.run(*arguments, **further)
