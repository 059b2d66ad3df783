"""The service reads a tensor that scatters change until it has one content, and waits for the disk off the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from app.dispatch.budget import Budget, Lease
from app.dispatch.cost import Chooser
from app.dispatch.pool import Pool
from app.errors import GatherError
from app.kernels import numpy_cpu
from app.service import Service, Stages
from app.store import LocalStore, Resident
from app.tensors.call import Answer, Call
from app.tensors.dtypes import DTYPES
from app.tensors.limits import Limits
from app.tensors.tensor import Tensor
from tests.store.helpers import put, scatter, strings


class Changing(Resident):
    """A content of four equal numbers that moves on `changes` times, each time just before it is found unsteady."""

    def __init__(self, changes: int, cold: bool = False) -> None:
        self.data = np.zeros(4, np.int64)
        tensor = Tensor(DTYPES["int64"], (4,), self.data)
        super().__init__(tensor, '"0"', 0, [0], cold)
        self.left = changes
        self.held = 0

    @property
    def steady(self) -> bool:
        if self.left:
            self.left -= 1
            self.data += 1
            self.words[0] += 2  # type: ignore[index]
        return super().steady

    def current(self) -> Resident:
        self.stamp = self.words[0]
        self.etag = f'"{self.stamp // 2}"'
        return self

    @contextmanager
    def hold(self) -> Iterator[None]:
        self.held += 1
        assert threading.current_thread() is not threading.main_thread()
        self.left = 0
        yield
        self.held += 1


class One:
    """A store of this content."""

    def __init__(self, resident: Resident) -> None:
        self.resident = resident

    def get(self, name: str) -> Resident | None:
        return self.resident

    def names(self) -> list[str]:
        return ["x"]


def gather(store: Any, rows: list[int], **options: Any) -> tuple[Answer, Stages]:
    limits = Limits(**options)
    budget = Budget(2**30)
    pool = Pool(2, 8)
    service = Service(limits, store, numpy_cpu, pool, Chooser(threads=2), budget)
    stages = Stages(0.0, 1e12)
    indices = Tensor(DTYPES["int64"], (len(rows), 1), np.array(rows, np.int64))
    try:
        answer = asyncio.run(service.gather(Call("gathernd", "x", indices, 0, "onnx-13"), stages, Lease(budget)))
    finally:
        pool.close()
    return answer, stages


@pytest.mark.parametrize("changes", [0, 1, 2, 5, 6])
def test_a_changing_content_is_read_again_until_it_holds_still(changes: int) -> None:
    resident = Changing(changes)
    answer, _ = gather(One(resident), [0, 3])
    assert answer.output.array.tolist() == [changes, changes]
    assert answer.data_etag == f'"{changes}"'
    assert resident.held == 0


def test_a_content_that_never_holds_still_is_read_with_writers_kept_out() -> None:
    resident = Changing(1000)
    answer, _ = gather(One(resident), [0, 3])
    assert answer.output.array.tolist() == [7, 7]
    assert answer.data_etag == '"7"'
    assert resident.held == 2


def test_an_odd_stamp_is_waited_out() -> None:
    resident = Changing(0)
    resident.words[0] = 3  # type: ignore[index]
    resident.stamp = 3
    asked = 0

    def settle() -> None:
        resident.words[0] = 4  # type: ignore[index]

    class Store(One):
        def get(self, name: str) -> Resident | None:
            nonlocal asked
            asked += 1
            threading.Timer(0.02, settle).start()
            return resident

    answer, _ = gather(Store(resident), [1])
    assert answer.data_etag == '"2"'
    assert asked == 1


def test_a_cold_content_is_read_off_the_event_loop() -> None:
    assert gather(One(Changing(0)), [1])[1].route == "loop"
    assert gather(One(Changing(0, cold=True)), [1])[1].route == "thread"


@pytest.mark.parametrize("cold", [False, True])
def test_a_split_of_a_cold_content_is_not_led_by_the_event_loop(cold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    run, leaders = numpy_cpu.run, []

    def noting(*arguments: Any) -> int:
        leaders.append(threading.current_thread())
        return run(*arguments)

    monkeypatch.setattr(numpy_cpu, "run", noting)
    _, stages = gather(One(Changing(0, cold)), [1] * 100_000)
    assert stages.route == "split"
    assert stages.choice.here
    assert [leader is threading.main_thread() for leader in leaders] == [not cold]


def test_strings_of_a_store_are_gathered_packed_and_their_size_is_limited(store: LocalStore) -> None:
    put(store, "x", strings("a" * 100, "b", ""))
    assert gather(store, [2, 0, -2])[0].output.array.tolist() == ["", "a" * 100, "b"]
    assert gather(store, [0] * 3, output_bytes=312)[0].output.array.tolist() == ["a" * 100] * 3
    with pytest.raises(GatherError, match="output_too_large"):
        gather(store, [0] * 3, output_bytes=311)
    with pytest.raises(GatherError, match="index_out_of_bounds"):
        gather(store, [3])


def test_the_etag_is_that_of_what_was_read(store: LocalStore) -> None:
    put(store, "x", np.arange(3))
    etag = scatter(store, "x", [[1]], np.array([7]))
    answer, _ = gather(store, [1])
    assert (answer.output.array.tolist(), answer.data_etag) == ([7], etag)
