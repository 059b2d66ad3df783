"""Infer requests without a server: what is remembered of earlier ones changes no answer, and all are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.api.inference import Inference
from app.api.v2_model_lookup import Models
from app.dispatch.choose_backend import BackendChooser
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.grpc_api.infer import RpcInference
from app.kernels import reference
from app.memory.budget import Budget
from app.services.service import Service
from app.store import EmptyStore
from app.store.store_interface import Resident
from app.telemetry.model_statistics import Statistics
from app.tensors.dtypes import DTYPES
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.for_each import for_each
from tests.grpc_api.messages import example, request
from tests.oip.bodies import Array
from tests.served import served
from tests.strings import packed

TABLE = np.arange(12, dtype=np.float32).reshape(4, 3)
Observed = bytes | GatherError


class OneTensor(EmptyStore):
    """A store of the tensor `table`, of which each `change` makes another version."""

    def __init__(self) -> None:
        self.words = [0]
        self.array: NDArray[Any] = TABLE
        self.etag = '"1"'
        self.number = 1
        self.damaged = False
        self._last: Resident | None = None

    def get(self, reference: str) -> Resident | None:
        """See `Store`."""
        if reference != "table" or not self.number:
            return None
        if self.damaged:
            raise GatherError("tensor_damaged", "its file was cut")
        last = self._last
        if last is None or (last.etag, last.data_version) != (self.etag, self.number):
            if self.array.dtype.kind == "U":
                tensor: Tensor = packed(self.array.tolist())
            else:
                tensor = Tensor(DTYPES[self.array.dtype.name], self.array.shape, self.array.reshape(-1))
            last = self._last = Resident(tensor, self.etag, self.words[0], self.words, data_version=self.number)
        return last

    def names(self) -> list[str]:
        """See `Store`."""
        return ["table"]

    def resolve(self, reference: str) -> str | None:
        """See `Store`."""
        return f"table@{self.number}" if reference == "table" and self.number else None

    def change(self, array: NDArray[Any], etag: str, number: int = 1) -> None:
        """Another content, under another ETag."""
        self.array, self.etag, self.number = array, etag, number


class Asked:
    """Infer requests to a service that has nothing but them and `table`."""

    def __init__(self) -> None:
        self.store = OneTensor()
        self.budget = Budget(1 << 24)
        self.service = Service(
            Limits(), self.store, reference, RequestThreadPool(1, 8), BackendChooser(threads=1), self.budget
        )
        self.statistics = Statistics()
        anything: Any = None
        self.inference = RpcInference(Inference(Models(self.service, self.statistics), anything))
        self.last: Any = None

    def ask(self, message: Any, *, deadline: float = 10.0, stream: bool = False) -> Observed:
        """The answer or the error."""
        return asyncio.run(self._ask(message.SerializeToString(), deadline, stream))

    async def _ask(self, message: bytes, deadline: float, stream: bool) -> Observed:
        now = perf_counter()
        self.last = asked = served(self.budget, now, now + deadline)
        try:
            return await self.inference.infer(message, asked, stream=stream)  # type: ignore[arg-type]
        except GatherError as error:
            return error

    def counts(self, model: str) -> tuple[int, int]:
        """How many requests were answered, and how many refused."""
        self.statistics.flush()
        found = next(self.statistics.bodies([model]))["inference_stats"]
        return found["success"]["count"], found["fail"]["count"]


class Disturbed:
    """The kernel; before each of its runs `meanwhile` is called with how many there were."""

    name, splits = "disturbed", False

    def __init__(self, meanwhile: Callable[[int], None]) -> None:
        self._meanwhile = meanwhile
        self.runs = 0

    def run(self, *arguments: Any, **options: Any) -> int:
        """See `Kernel`."""
        self._meanwhile(self.runs)
        self.runs += 1
        return reference.run(*arguments, **options)


Make = Callable[[], Asked]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes services, and ends their threads."""
    with ExitStack() as opened:

        def begin() -> Asked:
            made = Asked()
            opened.callback(made.service.pool.close)
            return made

        yield begin


def told(found: Observed) -> Any:
    """What a caller sees of it."""
    return found if isinstance(found, bytes) else (found.code, found.detail, found.places, found.hint)


def raw(data: NDArray[Any], datatype: str, indices: NDArray[Any], **options: Any) -> Any:
    arrays: dict[str, tuple[str, Array]] = {"data": (datatype, data), "indices": ("INT64", indices)}
    return request(arrays, **options)


def scattered(model: str, indices: NDArray[Any]) -> Any:
    updates = np.arange(indices.shape[0] * 3, dtype=np.float32).reshape(-1, 3)
    arrays: dict[str, tuple[str, Array]] = {
        "data": ("FP32", TABLE), "indices": ("INT64", indices), "updates": ("FP32", updates),
    }  # fmt: skip
    return request(arrays, model)


def resident(indices: NDArray[Any], **options: Any) -> Any:
    return request({"indices": ("INT64", indices)}, "table", **options)


REPEATED: Mapping[str, Callable[[int], Any]] = {
    "gathernd": lambda turn: example() if turn else raw(TABLE[:2, :2] + 1, "FP32", np.array([[0], [1]])),
    "float64": lambda turn: raw(TABLE.astype(np.float64) + turn, "FP64", np.array([[turn % 4]])),
    # The indices of one of these are not aligned.
    "5 bytes": lambda turn: raw(np.arange(5, dtype=np.int8) + np.int8(turn), "INT8", np.array([[0], [4]])),
    "6 bytes": lambda turn: raw(np.arange(6, dtype=np.int8) + np.int8(turn), "INT8", np.array([[5], [0]])),
    "gather": lambda turn: raw(TABLE + turn, "FP32", np.array([0, 2, 1]), model="gather", parameters={"axis": 1}),
    "elements": lambda turn: raw(
        TABLE + turn, "FP32", np.array([[0, 1, 2]]), model="gather_elements", parameters={"axis": 0}
    ),
    "resident": lambda turn: resident(np.array([[turn % 4], [0]])),
    "no indices": lambda turn: raw(TABLE + turn, "FP32", np.empty((0, 1), np.int64)),
    "scatternd": lambda turn: scattered("scatternd", np.array([[turn % 4], [0]])),
    "scatter_elements": lambda turn: scattered("scatter_elements", np.array([[turn % 4, 0, 1], [0, 0, 0]])),
    "id": lambda turn: raw(TABLE + turn, "FP32", np.array([[turn % 4]]), id=str(turn)),
    "fill": lambda turn: raw(TABLE + turn, "FP32", np.array([[turn]]), parameters={"out_of_bounds": "fill"}),
    "timeout": lambda turn: raw(TABLE, "FP32", np.array([[turn % 4]]), parameters={"timeout": 5_000_000}),
}


@for_each("kind", list(REPEATED))
def test_repetitions_are_answered_as_the_first_would_be(kind: str, make: Make) -> None:
    asked, repeated = make(), REPEATED[kind]
    for turn in range(8):
        found = asked.ask(repeated(turn))
        assert isinstance(found, bytes)
        assert found == make().ask(repeated(turn))
        assert asked.ask(repeated(turn), stream=True) == make().ask(repeated(turn), stream=True)
    model = repeated(0).model_name
    assert asked.counts(f"{model}@1") == (16, 0)
    assert asked.last.tensor == ("table" if kind == "resident" else "")
    assert asked.last.start < asked.last.parsed < asked.last.gathered


def test_a_wrong_index_is_refused_as_in_the_first(make: Make) -> None:
    asked = make()
    right, wrong = (raw(TABLE, "FP32", np.array([[0], [row]])) for row in (3, 4))
    for _ in range(2):
        assert isinstance(asked.ask(right), bytes)
        refused = asked.ask(wrong)
        assert isinstance(refused, GatherError)
        assert refused.code == "index_out_of_bounds"
        assert told(refused) == told(make().ask(wrong))
    assert asked.counts("gathernd@1") == (2, 2)


def test_an_answer_is_sent_although_the_tensor_is_damaged_right_after(make: Make) -> None:
    asked, message = make(), resident(np.array([[1]]))
    expected = asked.ask(message)

    def damage(_: int) -> None:
        asked.store.damaged = True

    asked.service.kernel = Disturbed(damage)
    assert asked.ask(message) == expected
    assert asked.counts("table@1") == (2, 0)


def test_a_changed_content_has_its_own_items_etag_and_version(make: Make) -> None:
    asked, message = make(), resident(np.array([[1]]))
    for array, etag, number in ((TABLE, '"1"', 1), (TABLE + 7, '"2"', 1), (TABLE + 9, '"3"', 2), (TABLE + 9, '"3"', 3)):
        asked.store.change(array, etag, number)
        fresh = make()
        fresh.store.change(array, etag, number)
        assert {asked.ask(message) for _ in range(2)} == {fresh.ask(message)}
    asked.store.number = 0
    refused = asked.ask(message)
    assert isinstance(refused, GatherError)
    assert refused.code == "model_not_found"


def test_a_content_that_changes_while_it_is_read_is_read_again(make: Make) -> None:
    asked, message = make(), resident(np.array([[1]]))
    expected = asked.ask(message)

    def scatter(runs: int) -> None:
        asked.store.words[0] = int(runs == 0)  # it has begun, and later it has ended

    asked.service.kernel = kernel = Disturbed(scatter)
    assert asked.ask(message) == expected
    assert kernel.runs > 1


@for_each("kind", ["deadline", "budget"])
def test_a_refusal_is_counted(kind: str, make: Make) -> None:
    asked = make()
    assert isinstance(asked.ask(example()), bytes)
    if kind == "budget":
        asked.budget.uncharged = 0
        asked.budget.small_used = asked.budget.small_total
    refused = asked.ask(example(), deadline=-1.0 if kind == "deadline" else 10.0)
    assert isinstance(refused, GatherError)
    assert refused.code == {"deadline": "deadline_exceeded", "budget": "overloaded"}[kind]
    assert asked.counts("gathernd@1") == (1, 1)


def test_another_choice_of_routes_holds_for_the_next_request(make: Make) -> None:
    asked = make()
    expected = asked.ask(example())
    asked.service.chooser = replace(asked.service.chooser, force_route="thread")
    assert asked.ask(example()) == expected
    assert asked.last.route == "thread"
