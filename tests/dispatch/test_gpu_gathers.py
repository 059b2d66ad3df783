"""Gathers of a service on a fake device: its memory, its copies of tensors, and what comes at the same time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

from app.dispatch.choose_backend import NEVER, BackendChooser, Size
from app.dispatch.gpu_gathers import Gpu
from app.dispatch.measured_rates import measure_gpu
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.kernels import reference
from app.memory.budget import Budget
from app.operators.gather_plan import GatherPlan
from app.services.service import Service
from app.store import LocalStore, Resident, Store
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer, Call, Device
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.dispatch.coroutine_tests import in_a_loop
from tests.dispatch.fake_device import FakeDevice
from tests.served import served
from tests.store.helpers import put, scatter

ROWS, WIDTH = 1000, 16
SIZE = ROWS * WIDTH * 4
"""Bytes of a table."""
FAST = Size(items=10_000, bytes=10_000 * WIDTH * 4)
"""A device that gains from 10,000 rows on."""


def table(number: int, rows: int = ROWS) -> np.ndarray:
    return np.full((rows, WIDTH), number, np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LocalStore]:
    """A store with the tables t0 to t3, whose items are their numbers, and the long table `long` of ones."""
    made = LocalStore(tmp_path / "store", Limits())
    made.open()
    for number in range(4):
        put(made, f"t{number}", table(number))
    put(made, "long", table(1, 300_000))
    yield made
    made.close()


class Harness:
    """A service with a fake device."""

    def __init__(self, store: Store, memory: int = 1 << 30) -> None:
        self.device = FakeDevice(memory)
        self.gpu = Gpu(self.device, FAST, 10)
        self.pool = RequestThreadPool(2, 20)
        self.service = Service(Limits(), store, reference, self.pool, BackendChooser(threads=1), Budget(2**30))
        self.service.use_gpu(self.gpu)

    async def ask(self, name: str, count: int = 100, device: Device = "gpu") -> Answer:
        """Gather `count` rows, all of which have the same items."""
        indices = Tensor(DTYPES["int64"], (count, 1), np.arange(count) % ROWS)
        answer = await self.service.run(Call("gathernd", name, indices, (0,), "onnx-13", device), served())
        assert np.unique(answer.output.array).size == 1
        return answer

    def held(self) -> list[str]:
        """The tables that the device has a copy of."""
        names = [f"t{number}" for number in range(4)] + ["long"]
        found = {name: self.service.store.get(name) for name in names}
        return [name for name, resident in found.items() if resident and self.gpu.has_copy(resident.etag)]

    def close(self) -> None:
        self.gpu.close()
        self.pool.close()


@pytest.fixture
def harness(store: LocalStore) -> Iterator[Harness]:
    made = Harness(store)
    yield made
    made.close()


@pytest.fixture
def tight(store: LocalStore) -> Iterator[Harness]:
    """With memory for three tables."""
    made = Harness(store, 3 * SIZE)
    yield made
    made.close()


def until(go: threading.Event) -> Callable[[str], None]:
    """Hold up each operation of the device until `go` is set."""

    def wait(name: str) -> None:
        go.wait(60)

    return wait


def value(answer: Answer) -> float:
    return float(answer.output.array.reshape(-1)[0])


@in_a_loop
async def test_a_request_for_the_device_gets_it_and_the_tensor_is_sent_once(harness: Harness) -> None:
    for _ in range(3):
        assert value(await harness.ask("t3", 1)) == 3
    assert harness.device.done == ["upload", "run", "run", "run"]


@in_a_loop
async def test_the_copy_used_longest_ago_goes_when_room_is_short(tight: Harness) -> None:
    for name in ("t0", "t1", "t0", "t2"):
        await tight.ask(name, 1)
    assert tight.held() == ["t0", "t2"]
    await tight.ask("t3", 1)
    assert tight.held() == ["t2", "t3"]
    assert tight.gpu.copies.evictions == 2


@in_a_loop
async def test_an_output_makes_room_for_itself_but_not_in_the_data_that_it_reads(tight: Harness) -> None:
    await tight.ask("t1", 1)
    assert value(await tight.ask("t2", ROWS)) == 2
    assert tight.held() == ["t2"]
    with pytest.raises(GatherError, match="overloaded"):
        await tight.ask("t2", 3 * ROWS)
    assert tight.held() == ["t2"]


@in_a_loop
async def test_a_tensor_moves_to_the_device_once_lookups_have_read_as_many_bytes_as_it_has(harness: Harness) -> None:
    plan = GatherPlan(1, 10_000, (300_000,), WIDTH, 4, False, True)
    missed, lookups = harness.service.chooser.decide(plan).missed_bytes, 0
    while harness.held() != ["long"]:
        await harness.ask("long", 10_000, "auto")
        assert "run" not in harness.device.done
        lookups += 1
        await asyncio.gather(*harness.gpu._copy_tasks)
    assert lookups == -(-300 * SIZE // missed) > 3
    await harness.ask("long", 10_000, "auto")
    assert harness.device.done == ["upload", "run"]


@in_a_loop
async def test_lookups_while_a_copy_is_on_its_way_run_on_the_cpu_and_send_nothing_more(harness: Harness) -> None:
    go = threading.Event()
    harness.device.fails = until(go)
    for _ in range(100):
        await harness.ask("long", 10_000, "auto")
    go.set()
    await asyncio.gather(*harness.gpu._copy_tasks)
    assert harness.device.done == ["upload"]


@in_a_loop
async def test_lookups_of_one_tensor_at_once_send_it_once(harness: Harness) -> None:
    harness.device.fails = lambda name: sleep(0.02)
    answers = await asyncio.gather(*(harness.ask("t1") for _ in range(8)))
    assert [value(answer) for answer in answers] == [1] * 8
    assert harness.device.done.count("upload") == 1


@in_a_loop
async def test_too_many_at_once_are_refused(harness: Harness) -> None:
    go = threading.Event()
    harness.device.fails = until(go)
    calls = [asyncio.ensure_future(harness.ask("t1")) for _ in range(15)]
    refused, going_on = await asyncio.wait(calls, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    assert [getattr(call.exception(), "code", None) for call in refused] == ["overloaded"]
    go.set()
    await asyncio.gather(*going_on)


class Watched(Store):
    """A store of one table, which counts how often writers are kept out of it."""

    def __init__(self, store: LocalStore, name: str) -> None:
        self.store = store
        self.name = name
        self.held = False
        self.holds = 0

    def get(self, reference: str) -> Any:
        resident = self.store.get(self.name)
        assert resident is not None
        return Seen(self, resident)


class Seen:
    """The table at one moment."""

    def __init__(self, within: Watched, resident: Resident) -> None:
        self.within = within
        self.resident = resident

    def __getattr__(self, name: str) -> Any:
        return getattr(self.resident, name)

    def refreshed(self) -> Seen:
        return Seen(self.within, self.resident.refreshed())

    @contextmanager
    def _hold(self) -> Iterator[None]:
        with self.resident.exclude_writers():
            self.within.held = True
            self.within.holds += 1
            yield
            self.within.held = False

    def exclude_writers(self) -> AbstractContextManager[object]:
        return self._hold()


@pytest.mark.parametrize("times", [1, 1000])
def test_content_that_changes_while_it_is_copied_is_copied_again_with_writers_kept_out(
    store: LocalStore, times: int
) -> None:
    watched, left = Watched(store, "t1"), [times]
    before = watched.get("t1").etag
    harness = Harness(watched)

    def change(name: str) -> None:
        if name == "upload" and left[0] and not watched.held:
            left[0] -= 1
            scatter(store, "t1", np.arange(ROWS)[:, None], table(times - left[0] + 1))

    harness.device.fails = change
    try:
        answer = asyncio.run(harness.ask("t1", 2))
        assert value(answer) == 2
        assert answer.data_etag == watched.get("t1").etag
        assert harness.gpu.has_copy(watched.get("t1").etag)
        assert not harness.gpu.has_copy(before)
        assert watched.holds == 1
    finally:
        harness.close()


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
