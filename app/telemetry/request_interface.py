"""The interface of a request to metrics, logs and traces: the data of `app.api.asgi_request.RequestContext`."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Protocol

from app.errors import Code
from app.telemetry.server_timing import RequestTimings


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


class ObservedRequest(Protocol):
    """A request that is over or about to be. `status` is 0 where the client went away before its answer."""

    request_id: str

    @property
    def exchange(self) -> ObservedExchange:
        """The server's side of it."""
        ...

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """Its header fields, without those that hold secrets."""
        ...

    @property
    def method(self) -> str:
        """Its method."""
        ...

    @property
    def number(self) -> int:
        """Its number among the requests of this process."""
        ...

    @property
    def path(self) -> str:
        """Its path, decoded."""
        ...

    @property
    def scope(self) -> MutableMapping[str, Any]:
        """Its ASGI scope."""
        ...

    @property
    def sent_key(self) -> bytes | None:
        """The SHA-256 of the key that came with it; None without one."""
        ...

    @property
    def status(self) -> int:
        """The status of its answer."""
        ...

    @property
    def timings(self) -> RequestTimings:
        """When it entered each stage."""
        ...
