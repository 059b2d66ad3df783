"""One request to the application without a server."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from app.main import Application


def ask(app: Application, method: str, path: str, *fields: tuple[bytes, bytes]) -> tuple[int, dict[str, str]]:
    """Status and header fields of the answer to a request without a body."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"localhost"), *fields],
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}
