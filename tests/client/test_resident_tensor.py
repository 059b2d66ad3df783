"""`client["items"]` is indexed as the NumPy array is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gathernd import AsyncClient, Client, errors
from gathernd._answers import TensorInfo
from gathernd._sync.client import ResidentTensor
from tests.client.test_gathers import same
from tests.for_each import for_each
from tests.http.server import Server

TABLE = np.arange(60, dtype=np.float32).reshape(12, 5)
KEYS: list[Any] = [
    slice(5, 7), slice(None), slice(3), slice(10, None), slice(5, 1000), slice(-3, None), slice(None, -10), slice(7, 5),
    slice(None, None, 3), slice(None, None, -1), slice(20, 30), slice(0, 0), 3, -1, np.int32(4), [3, 8, -1],
    np.array([[0, 1], [2, 3]], np.uint8), (3, 4), (-1, [0, 4]), ([[1], [2]], [[0, 3]]), ..., (), [], ([], 1),
    np.array([3, 8], np.uint64),
]  # fmt: skip


@pytest.fixture
def items(server: Server) -> Iterator[ResidentTensor]:
    with Client(server.url) as client:
        client.put("indexed", TABLE)
        yield client["indexed"]
        client.delete("indexed")


@for_each("key", KEYS)
def test_an_index_picks_what_numpys_does(items: ResidentTensor, key: Any) -> None:
    expected = TABLE[key if not isinstance(key, list) else np.array(key, np.int64)]
    assert same(np.asarray(items[key]), np.asarray(expected))


def test_the_asynchronous_client_is_indexed_alike(server: Server, items: ResidentTensor) -> None:
    async def run() -> None:
        async with AsyncClient(server.url) as client:
            assert (await client["indexed"].info()).shape == (12, 5)
            for key in (slice(-3, None), [3, 8, -1], (3, 4)):
                assert same(np.asarray(await client["indexed"][key]), np.asarray(TABLE[key]))

    asyncio.run(run())


@for_each("key", [12, -13, [0, 12], (0, 5), 2**63, [2**64 - 1], (2**64 - 1, 0)])
def test_an_index_outside_is_an_index_error(items: ResidentTensor, key: Any) -> None:
    with pytest.raises(IndexError):
        items[key]


@for_each("key", ["5", 1.5, None, TABLE[:, 0] > 3, (slice(2), 1), [0.0]])
def test_another_index_is_a_type_error(items: ResidentTensor, key: Any) -> None:
    with pytest.raises(TypeError):
        items[key]


@pytest.mark.parametrize("kept", [1, 2])
@pytest.mark.parametrize("name", ["indexed", "alias"])
def test_rows_are_those_of_the_shape_that_was_asked_for_though_the_tensor_is_replaced(
    items: ResidentTensor, monkeypatch: pytest.MonkeyPatch, name: str, kept: int
) -> None:
    client = items._client
    later = np.arange(100, dtype=np.float32).reshape(20, 5) + 1000
    info = ResidentTensor.info

    def put(array: NDArray[Any], keep: int) -> None:
        client.put_alias("alias", f"indexed@{client.put('indexed', array, keep=keep).version}")

    def replaced(self: ResidentTensor) -> TensorInfo:
        found = info(self)
        monkeypatch.undo()
        put(later, 2)
        if kept == 1:  # what an alias named before it was moved goes at the next upload
            put(later, 1)
        return found

    try:
        put(TABLE, 1)
        monkeypatch.setattr(ResidentTensor, "info", replaced)
        assert same(np.asarray(client[name][-5:]), (TABLE if kept == 2 else later)[-5:])
    finally:
        client.delete_alias("alias")


def test_the_whole_tensor_is_an_array_and_its_name_stands_for_it(items: ResidentTensor) -> None:
    assert same(np.asarray(items), TABLE)
    assert np.asarray(items, np.float64).dtype == np.float64
    assert same(items._client.gathernd(items, [[2]]), TABLE[[2]])
    assert repr(items) == "<ResidentTensor 'indexed'>"
    with pytest.raises(TypeError):
        iter(items)


def test_numpy_is_told_that_it_cannot_await() -> None:
    with pytest.raises(TypeError, match="await its"):
        np.asarray(AsyncClient("http://service")["items"])


def test_what_is_not_there_is_a_lookup_error(items: ResidentTensor) -> None:
    for key in (slice(2), 0, ..., slice(-1, None)):
        with pytest.raises(LookupError) as caught:
            items._client["nobody"][key]
        assert isinstance(caught.value, errors.TensorNotFound)
    with pytest.raises(ValueError, match="name"):
        items._client["../x"][0]
