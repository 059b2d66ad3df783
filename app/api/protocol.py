"""What ASGI cannot reach: unfinished headers, header size, bad framing, slow senders, and their error bodies.

A small subclass of uvicorn's httptools protocol. It adds no work to a request but a few comparisons: slow senders are
found by one sweep a second over all connections (`sweep`), not by a timer for each request.
"""

from __future__ import annotations

import asyncio
import secrets
from time import monotonic
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.api.errors import STATUS, error_body
from app.errors import GatherError


class Timeouts:
    """Limits on senders, in seconds and bytes a second, and on headers, in bytes and fields."""

    def __init__(self, header: float, body: float, rate: int, header_bytes: int, header_fields: int) -> None:
        self.header = header
        self.body = body
        self.rate = rate
        self.header_bytes = header_bytes
        self.header_fields = header_fields


class Protocol(HttpToolsProtocol):
    """httptools with limits. `timeouts` is set once per process, before the server starts."""

    timeouts: ClassVar[Timeouts] = Timeouts(10.0, 10.0, 1024, 65536, 100)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.in_header = False
        self.header_size = 0
        self.began = monotonic()
        self.heard = self.began
        self.received = 0
        self.refused = False
        self.url = b""

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and refuse what can never become a request."""
        if self.refused:
            return
        self.heard = monotonic()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass
        except httptools.HttpParserError as error:
            cause = error.__context__
            self.refuse(cause if isinstance(cause, GatherError) else _bad_framing(error))
            return
        if self.in_header:
            self.header_size += len(data)
            if self.header_size > self.timeouts.header_bytes:
                self.refuse(_header_too_large(self.timeouts))

    def on_message_begin(self) -> None:
        """A request starts."""
        super().on_message_begin()
        self.in_header = True
        self.header_size = 0
        self.began = self.heard
        self.received = 0

    def on_headers_complete(self) -> None:
        """The header is whole: judge its size, then start the request."""
        self.in_header = False
        headers = self.headers
        size = len(self.url)
        for name, value in headers:
            size += len(name) + len(value)
        if size > self.timeouts.header_bytes or len(headers) > self.timeouts.header_fields:
            raise _header_too_large(self.timeouts)
        self.began = self.heard
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body arrives."""
        self.received += len(body)
        super().on_body(body)

    def _should_upgrade(self) -> bool:
        return False

    def refuse(self, error: GatherError) -> None:
        """Answer `error` without the application, and close."""
        self.refused = True
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        if self.transport.is_closing():
            return
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(error_response(error, self.url))
        self.transport.close()

    def overdue(self, now: float) -> GatherError | None:
        """What a sender that has been too slow until `now` is told, if it has been."""
        limits = self.timeouts
        if self.in_header:
            if now - self.began > limits.header:
                return GatherError("request_timeout", f"the header did not arrive within {limits.header:g} s")
            return None
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or not cycle.more_body or self.flow.read_paused:
            return None
        waited = now - self.began
        if now - self.heard > limits.body:
            return GatherError("request_timeout", f"the body paused for more than {limits.body:g} s")
        if waited > limits.body and self.received < (waited - limits.body) * limits.rate:
            return GatherError("request_timeout", f"the body arrived with less than {limits.rate} bytes a second")
        return None


def _bad_framing(error: Exception) -> GatherError:
    return GatherError("malformed_request", f"this is not a valid HTTP/1.1 request: {error}")


def _header_too_large(limits: Timeouts) -> GatherError:
    return GatherError(
        "header_too_large",
        f"the header has more than {limits.header_bytes} bytes or {limits.header_fields} fields",
        facts={"limit": "header_bytes", "maximum": limits.header_bytes},
    )


def error_response(error: GatherError, url: bytes = b"") -> bytes:
    """A whole HTTP response for a request that the application never saw; `url` is as much of its URL as is known."""
    request_id = secrets.token_hex(8)
    content_type, body = error_body(error, request_id, url.partition(b"?")[0].decode("latin-1"))
    return b"".join(
        (
            STATUS_LINE[STATUS[error.code]],
            b"content-type: ",
            content_type,
            b"\r\ncontent-length: %d\r\nx-request-id: %b\r\n" % (len(body), request_id.encode()),
            b"server-timing: parse;dur=0\r\nconnection: close\r\n\r\n",
            body,
        )
    )


async def sweep(connections: set[Any], interval: float = 1.0) -> None:
    """Every `interval` seconds refuse the senders that are too slow. Runs until it is cancelled."""
    while True:
        await asyncio.sleep(interval)
        now = monotonic()
        for connection in list(connections):
            if isinstance(connection, Protocol) and not connection.refused:
                error = connection.overdue(now)
                if error is not None:
                    connection.refuse(error)
