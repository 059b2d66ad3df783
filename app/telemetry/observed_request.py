"""A request as metrics, logs and traces know it, whether it came over HTTP or gRPC."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol

from app.errors import Code
from app.telemetry.request_id import REQUEST_ID, numbered_id
from app.telemetry.server_timing import RequestTimings
from app.telemetry.trace_context import handed_on


class ObservedExchange(Protocol):
    """The server's side of a request (see `app.server.http_exchange`)."""

    @property
    def received(self) -> int:
        """Bytes of the request's body that have come."""
        ...

    @property
    def sent(self) -> int:
        """Bytes of the answer's body that were handed to the connection."""
        ...

    @property
    def refusal(self) -> Code | None:
        """The error with which the server ended the request by itself, if it did."""
        ...

    @property
    def refusal_id(self) -> str:
        """The request id that it gave that answer."""
        ...


class ObservedRequest:
    """A request being answered. Its kinds set the attributes: they are too many to hand on for each request.

    `number` is its number among the requests of this process, `path` is decoded, and `status` is that of its answer: 0
    where the client went away before it. `timings` collects the times. `given_id` is the id that the caller gave it.
    """

    __slots__ = ("given_id", "method", "number", "path", "status", "timings")

    given_id: str | None
    method: str
    number: int
    path: str
    status: int
    timings: RequestTimings

    @property
    def exchange(self) -> ObservedExchange:
        """The server's side of it."""
        raise NotImplementedError

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """Its header fields or metadata, without those that hold secrets."""
        raise NotImplementedError

    @property
    def scope(self) -> MutableMapping[str, Any]:
        """Its ASGI scope."""
        raise NotImplementedError

    @property
    def sent_key(self) -> bytes | None:
        """The SHA-256 of the key that came with it; None without one."""
        raise NotImplementedError

    @property
    def request_id(self) -> str:
        """Its id: the caller's, if it gave a valid one."""
        return self.given_id or numbered_id(self.number)

    @request_id.setter
    def request_id(self, request_id: str) -> None:
        self.given_id = request_id

    def identify(self) -> None:
        """Take over the id and the trace that the caller gave it, if it gave them."""
        headers = self.headers
        given = headers.get(b"x-request-id")
        if given is not None and REQUEST_ID.fullmatch(text := given.decode("latin-1")):
            self.given_id = text
        if given is not None or b"traceparent" in headers:
            self.timings.handed_on = handed_on(headers, self.given_id)
