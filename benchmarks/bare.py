"""The floor: an ASGI application that receives the body whole and answers BARE_BYTES bytes of JSON, nothing else.

What it reaches under the same uvicorn on the same machine is what any service there could reach. The body goes into
one buffer of the announced size, the quickest way known to take it.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

SIZE = int(os.environ.get("BARE_BYTES", "2"))
BODY = b'"' + b"x" * (SIZE - 2) + b'"'
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(BODY)).encode())],
}
END = {"type": "http.response.body", "body": BODY}


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Receive, then answer; every path alike."""
    if scope["type"] != "http":
        return
    message = await receive()
    if message.get("more_body"):
        length = next(int(value) for name, value in scope["headers"] if name == b"content-length")
        buffer, filled = bytearray(length), 0
        while True:
            part = message["body"]
            buffer[filled : filled + len(part)] = part
            filled += len(part)
            if not message.get("more_body"):
                break
            message = await receive()
            if message["type"] == "http.disconnect":
                return
    await send(START)
    await send(END)
