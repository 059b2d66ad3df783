"""The floor: an ASGI application that takes a body and answers N bytes to `/N`, and does nothing else.

What it reaches under uvicorn bounds what any service there could reach. The body goes into one buffer of the announced
size, the quickest way to take it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

Message = dict[str, Any]


@cache
def answer_of(path: str) -> tuple[Message, Message]:
    """Both messages of an answer of as many bytes as the path says."""
    size = int(path.strip("/") or 0)
    length = (b"content-length", str(size).encode())
    start = {"type": "http.response.start", "status": 200, "headers": [length]}
    return start, {"type": "http.response.body", "body": b"x" * size}


async def app(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Receive, then answer."""
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
    for one in answer_of(scope["path"]):
        await send(one)
