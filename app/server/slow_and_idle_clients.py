"""Find slow and idle clients once a second: refuse slow senders, cut off slow readers, and close idle connections.

One sweep over all connections costs less than a timer for each request.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from contextlib import suppress
from time import monotonic
from typing import Any, NamedTuple

from app.errors import GatherError
from app.server.connection_limit import IDLE_S
from app.server.http1_connection import Http1Connection
from app.server.http_exchange import HttpExchange
from app.settings import Settings


class _WriteProgress(NamedTuple):
    """A client's progress in reading a response, as of the last check.

    Since the time `began`, the client has read bytes `first` to `read` of the exchange's response. It last made
    progress at the time `moved`.
    """

    exchange: HttpExchange | None
    began: float
    moved: float
    first: int
    read: int


async def sweep(connections: set[Any], interval: float = 1.0) -> None:
    """Check all connections every `interval` seconds. Runs until it is canceled."""
    answers: dict[Http1Connection, _WriteProgress] = {}
    while True:
        await asyncio.sleep(interval)
        now = monotonic()
        before, answers = answers, {}
        for connection in list(connections):
            if not isinstance(connection, Http1Connection):
                continue
            progress = _write_progress(connection, now, before.get(connection))
            if progress is not None:
                answers[connection] = progress
            if progress is not None and _is_too_slow(progress, now, connection.settings):
                _cut_off(connection)
            elif connection.lingering is not None:
                if connection.lingering.is_over(now):
                    connection.lingering.close()
            elif not connection.refused:
                error = _overdue_error(connection, now)
                if error is not None:
                    connection.refuse(error)
                elif _is_idle_too_long(connection, now):
                    connection.transport.close()


def _write_progress(connection: Http1Connection, now: float, before: _WriteProgress | None) -> _WriteProgress | None:
    """Return the client's progress in reading its response, or None if no response is waiting to be sent.

    The number of bytes that the client has read is the number written minus the number still waiting here and in the
    kernel. The bytes in the kernel must be subtracted because the kernel does not accept more until a large part of its
    buffer, possibly megabytes, is free.
    """
    left = connection.transport.get_write_buffer_size()
    if not left:
        return None
    exchange: HttpExchange | None = connection.cycle
    read = (
        (0 if exchange is None else exchange.sent) - left - unsent_bytes(connection.transport.get_extra_info("socket"))
    )
    if before is None or before.exchange is not exchange:
        return _WriteProgress(exchange, now, now, read, read)
    return before._replace(moved=now, read=read) if read > before.read else before


def _is_too_slow(progress: _WriteProgress, now: float, settings: Settings) -> bool:
    """Return whether a client has stopped reading or reads more slowly than the minimum rate."""
    late = now - progress.began - settings.answer_timeout
    too_little = late > 0 and progress.read - progress.first < late * settings.min_answer_rate
    return too_little or now - progress.moved > settings.answer_timeout


def unsent_bytes(connection: socket.socket) -> int:
    """Return the bytes written to the socket that the peer has not received, or 0 if the kernel does not say."""
    count = bytearray(4)
    with suppress(OSError):
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, count)
    return int.from_bytes(count, sys.byteorder)


def reset_on_close(connection: socket.socket) -> None:
    """Make the kernel discard unsent bytes and reset the connection when it is closed."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _cut_off(connection: Http1Connection) -> None:
    """End a connection whose client does not read. Unsent bytes are discarded, including those in the kernel."""
    exchange: HttpExchange | None = connection.cycle
    if exchange is not None and not exchange.response_complete:
        exchange.refusal = "request_timeout"
    reset_on_close(connection.transport.get_extra_info("socket"))
    connection.transport.abort()


def _overdue_error(connection: Http1Connection, now: float) -> GatherError | None:
    """Return the error for a sender that is too slow, or None."""
    settings = connection.settings
    exchange: HttpExchange | None = connection.cycle
    began = connection.request_began
    if connection.beyond_limit and exchange is None and now - began > IDLE_S:
        return connection.limit.refusal()
    if connection.in_header:
        if now - began > settings.header_timeout and not connection.flow.read_paused:
            return GatherError("request_timeout", f"the header did not arrive within {settings.header_timeout:g} s")
        return None
    if exchange is None or not exchange.more_body or exchange.response_complete:
        return None
    if exchange.deadline and now > exchange.deadline:
        return GatherError("deadline_exceeded", "the body had not arrived when the request's deadline passed")
    if connection.flow.read_paused:
        return None
    resumed = connection.flow.resumed  # until then, the service had paused reading
    waited = now - max(began, resumed)
    if now - max(connection.last_received, resumed) > settings.body_timeout:
        return GatherError("request_timeout", f"the body paused for more than {settings.body_timeout:g} s")
    late, rate = waited - settings.body_timeout, settings.min_body_rate
    if late > 0 and exchange.received < late * rate:
        return GatherError("request_timeout", f"the body arrived at less than {rate} bytes per second")
    return None


def _is_idle_too_long(connection: Http1Connection, now: float) -> bool:
    """Return whether no request is in flight, and it has been too long since the last one arrived.

    If a request was answered before its whole body arrived, the rest is read and discarded for a while, so that the
    client reads the response instead of a reset.
    """
    exchange: HttpExchange | None = connection.cycle
    if connection.in_header or (exchange is not None and not exchange.response_complete):
        return False
    if exchange is not None and exchange.more_body:
        return now - connection.last_answered > connection.settings.body_timeout
    return now - connection.last_received > connection.settings.keep_alive
