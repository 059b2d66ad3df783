"""One call, with the interface that metrics, logs, traces and the thread pool use for HTTP requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Final
from urllib.parse import unquote

from app.errors import Code
from app.grpc_api.rpc_table import Rpc
from app.memory.budget import Budget, MemoryReservation
from app.security.api_keys import key_digest
from app.telemetry.request_id import COUNTER
from app.telemetry.served_request import ServedRequest

_AUTHORIZATION: Final = "authorization"
_REQUEST_ID: Final = "x-request-id"
_TRACE: Final = "traceparent"
_OBSERVED: Final = frozenset((_TRACE, "tracestate", _REQUEST_ID, "user-agent"))
"""Metadata that logs and traces may contain. They contain neither the key nor any other metadata."""


Address = tuple[str, int]


class RpcRequest(ServedRequest):
    """A call, or one request of a stream.

    `exchange` is the request itself, because the request holds the byte counts and records whether the caller has
    disconnected.
    """

    refusal: Code | None = None
    refusal_id = ""
    received = 0
    sent = 0
    disconnected = False
    on_disconnect: Callable[[], None] | None = None
    credential: bytes | None = None
    repeated_key = False

    def __init__(
        self,
        rpc: Rpc,
        metadata: Sequence[tuple[str, str | bytes]],
        peer: Callable[[], str],
        budget: Budget,
        deadline: float,
    ) -> None:
        now = perf_counter()
        super().__init__(now, now + deadline, MemoryReservation(budget), self)
        self.rpc = rpc
        self.method, self.path = "POST", rpc.path
        self.number = next(COUNTER)
        self._peer = peer
        # If a name is repeated, the last value counts.
        self.headers = {name.encode(): _octets(value) for name, value in metadata if name in _OBSERVED}
        for name, value in metadata:
            if name == _AUTHORIZATION:
                self.repeated_key = self.credential is not None
                self.credential = key_digest(_octets(value))
        self.identify()

    @property
    def exchange(self) -> RpcRequest:  # type: ignore[override]
        """The server's side of the request: the request itself."""
        return self

    @property
    def scope(self) -> dict[str, Any]:
        """The data that logs and traces record about the caller, in the form of an HTTP request's ASGI scope."""
        peer = self._peer()
        client = address_of_peer(peer) or (peer.partition(":")[0], 0)
        return {"client": client, "http_version": "2", "scheme": "http"}

    @property
    def sent_key(self) -> bytes | None:
        """The SHA-256 of the request's key, or None."""
        return self.credential

    def leave(self) -> None:
        """Mark the caller as disconnected. Waiting work is dropped; the result of running work is discarded."""
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()


def _octets(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


def address_of_peer(peer: str) -> Address | None:
    """Parse host and port from gRPC's peer name, such as `ipv6:%5B::1%5D:5000`. Returns None for a Unix socket."""
    kind, _, rest = peer.partition(":")
    host, _, port = unquote(rest).rpartition(":")
    return (host.strip("[]"), int(port)) if kind in ("ipv4", "ipv6") and port.isdecimal() else None
