"""An answer whose body is whole is written by one call, where ASGI needs two messages and two passes over its fields.

Measured on 2026-11-20 (2 cores, AMD EPYC): with ASGI's two messages, 0.57 times the rate of
tiny JSON gathers, 0.54 of binary lookups and 0.84 of 4 MB inline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.server.write_batch import enqueue

JOINED: Final = 1 << 13
"""Answers of up to this many bytes leave as one piece: to copy them costs less than to write several. A lookup of
64 KiB took 48 µs of processor time in pieces against 53 joined (benchmarks/README.md).
"""


class AnsweringExchange(Protocol):
    """What `respond` uses of an `HttpExchange`; `defaults` are the header fields that every answer begins with."""

    defaults: bytes
    disconnected: bool
    flow: FlowControl
    keep_alive: bool
    on_response: Callable[[], None]
    response_complete: bool
    response_started: bool
    sent: int
    transport: asyncio.Transport
    waiting_for_100_continue: bool

    def wake(self) -> None:
        """Wake who waits for the end of the request, if anybody does."""
        ...


def ready(exchange: AnsweringExchange) -> bool:
    """Whether a whole answer can be written at once: not where the client must first read what it already has."""
    return not (exchange.flow.write_paused or exchange.disconnected or exchange.response_started)


def respond(
    exchange: AnsweringExchange,
    status: int,
    fields: bytes,
    pieces: Sequence[bytes | bytearray | memoryview],
    size: int,
) -> None:
    """Write a whole answer, where the exchange is `ready`.

    `fields` are complete header lines, Content-Length among them, which is `size`, the bytes of all `pieces`; a request
    with the method HEAD is not for this.
    """
    exchange.response_started = exchange.response_complete = True
    exchange.waiting_for_100_continue = False
    exchange.sent = size
    exchange.wake()
    end = b"\r\n" if exchange.keep_alive else b"connection: close\r\n\r\n"
    header = STATUS_LINE[status], exchange.defaults, fields, end
    answer = (b"".join((*header, *pieces)),) if size <= JOINED else (b"".join(header), *pieces)
    enqueue(exchange.transport, answer, size)
    exchange.on_response()
