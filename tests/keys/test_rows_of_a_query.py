"""`GET /tensors/{name}/rows`: the rows of the keys in a query."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest

from app.api.routes.tensors_rows import RowsRoute
from app.errors import GatherError
from app.memory.budget import Budget, MemoryReservation
from app.telemetry.served_request import ServedRequest
from tests.keyed import KEYS, LACKED, ask, by_key, running


class Asked(ServedRequest):
    """A request with a query, which keeps its answer."""

    def __init__(self, query: str) -> None:
        super().__init__(0.0, 1e12, MemoryReservation(Budget(1 << 30)), None)
        self.query = query.encode()
        self.answer: Any = None

    async def send(self, status: int, media_type: bytes, body: list[bytes]) -> None:
        self.answer = (status, media_type, json.loads(b"".join(body)))


def get(name: str, query: str) -> Any:
    """The answer to a query."""
    asked: Any = Asked(query)
    with running() as service:
        asyncio.run(RowsRoute(service)(asked, name))
    return asked.answer


@pytest.mark.parametrize("dtype", [*KEYS])
def test_rows_are_those_of_a_gather_that_fills(dtype: str) -> None:
    keys = [KEYS[dtype][2], LACKED[dtype], KEYS[dtype][0], KEYS[dtype][1]]
    found = get(dtype, "&".join(f"key={quote(str(key))}" for key in keys))
    assert found == (200, b"application/json", ask(by_key(dtype, keys, missing="fill", found=True)))
    assert found[2]["found"]["values"] == [True, False, True, True]


@pytest.mark.parametrize(
    ("code", "pointer", "name", "query"),
    [
        ("invalid_field", "/query/key", "int64", ""),
        ("invalid_field", "/query/keys", "int64", "key=1&keys=2"),
        ("invalid_field", "/query/key", "int64", "key=1.5"),
        ("invalid_field", "/query/key", "uint64", "key="),
        ("value_not_representable", "/query/key", "uint64", "key=-1"),
        ("value_not_representable", "/query/key", "int64", f"key={2**63}"),
        ("no_keys", "/name", "plain", "key=1"),
        ("tensor_not_found", "/name", "none", "key=1"),
    ],
)
def test_what_is_refused(code: str, pointer: str, name: str, query: str) -> None:
    with pytest.raises(GatherError) as caught:
        get(name, query)
    assert (caught.value.code, caught.value.places[0].pointer) == (code, pointer)
