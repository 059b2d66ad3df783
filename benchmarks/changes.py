"""Changes of a table over HTTP, such as scatters and upserts, each with an idempotency key; lookups beside them."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterator, Mapping

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


def paced(port: int, work: Mapping[str, tuple[str, Iterator[bytes], float]], seconds: float) -> dict[str, list[float]]:
    """Return the milliseconds of requests that are sent at fixed rates, each kind over a connection of its own.

    `work` has a path, bodies and requests a second by name. A request that begins late, because the one before it took
    too long, counts from the time at which it was due.
    """
    times: dict[str, list[float]] = {name: [] for name in work}

    async def ask(name: str, begun: float) -> None:
        path, bodies, rate = work[name]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(int(rate * seconds)):
            due = begun + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await change(reader, writer, path, next(bodies))
            times[name].append((time.perf_counter() - due) * 1e3)
        writer.close()

    async def run() -> None:
        begun = time.perf_counter()
        await asyncio.gather(*(ask(name, begun) for name in work))

    asyncio.run(run())
    return times
