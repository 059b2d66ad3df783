"""Changes of a table over HTTP, such as scatters and upserts, each with an idempotency key."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator

from benchmarks.work import SAFETENSORS


async def change(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: bytes) -> None:
    """Send a change on an open connection and read its answer."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {SAFETENSORS['Content-Type']}\r\n"
        f"idempotency-key: {secrets.token_hex(12)}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    at = answer.index(b"content-length: ") + 16
    content = await reader.readexactly(int(answer[at : answer.index(b"\r", at)]))
    assert answer.startswith(b"HTTP/1.1 200"), content


def times_of(port: int, path: str, bodies: Iterator[bytes], width: int, seconds: float) -> list[float]:
    """The milliseconds of the changes that are made in so many seconds, `width` at a time."""
    times: list[float] = []

    async def ask(until: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (begun := time.perf_counter()) < until:
            await change(reader, writer, path, next(bodies))
            times.append((time.perf_counter() - begun) * 1e3)
        writer.close()

    async def run() -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(ask(until) for _ in range(width)))

    asyncio.run(run())
    return times
