"""How a large answer leaves: a part of it in each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.asgi_request import AT_ONCE, RequestContext
from app.main import create_app
from app.settings import Settings

MIB = 1 << 20


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("sizes", [(AT_ONCE + 1,), (5 * MIB,), (10, 3 * MIB, 7), (300 << 10,) * 26, (64 * MIB,)])
def test_other_requests_have_their_turn_between_the_parts_of_a_large_answer(
    scheme: str, sizes: tuple[int, ...]
) -> None:
    pieces = [bytes([number]) * size for number, size in enumerate(sizes)]
    happened: list[bytes | None] = []
    app = create_app(Settings())

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.body":
            happened.append(bytes(message["body"]))

    async def receive() -> MutableMapping[str, Any]:
        raise AssertionError("an answer reads nothing")

    async def answer() -> None:
        loop = asyncio.get_running_loop()

        def other() -> None:
            happened.append(None)
            loop.call_soon(other)

        loop.call_soon(other)
        scope: dict[str, Any] = {
            "type": "http",
            "scheme": scheme,
            "method": "POST",
            "path": "/gathernd",
            "raw_path": b"/gathernd",
            "query_string": b"",
            "headers": [],
        }
        scope["extensions"] = {"gathernd": SimpleNamespace(route_match=None, scope=scope)}
        context = RequestContext(scope, receive, send, app.admission, app.deadline, app.metrics)
        await context.send(200, b"application/octet-stream", pieces)

    asyncio.run(answer())
    parts = [part for part in happened if part is not None]
    assert b"".join(parts) == b"".join(pieces)
    turns = [
        sum(map(len, filter(None, turn))) for other, turn in groupby(happened, lambda one: one is None) if not other
    ]
    quarter = -(-sum(sizes) // 4)
    assert len(turns) <= 5  # the last one may be the end of the answer alone
    assert max(turns) <= max(MIB // 2, quarter) + max(map(len, parts))
    assert len(turns) >= min(3, sum(sizes) // (MIB // 2))
