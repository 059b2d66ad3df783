"""Call other shards over persistent connections, with one request at a time on each.

Requests to several shards are all sent before the first response is read, so together they cost one round trip on one
thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from http.client import HTTPConnection, HTTPException
from ssl import SSLContext
from threading import Lock
from types import TracebackType
from typing import Final, NamedTuple, Self
from urllib.parse import quote

from app.api.own_header_fields import NODE
from app.cluster.catalogue.records import Catalogue
from app.cluster.shard.pull_segment import shard_connection
from app.tensors.buffer_type import Buffer

CONNECT_S: Final = 1.0
_KEPT: Final = 32
"""Maximum number of idle connections to one shard."""


class PeerFailed(Exception):
    """A shard gave no usable response."""


class PeerAnswer(NamedTuple):
    """A complete response from a shard."""

    status: int
    body: bytes


class Peers:
    """Calls to the other shards. Methods block and are thread-safe.

    `catalogue` returns the catalogue, which lists the shards' addresses. `key` returns the API key. TLS is used if
    `tls` returns a context.
    """

    def __init__(
        self, catalogue: Callable[[], Catalogue], key: Callable[[], str | None], tls: Callable[[], SSLContext | None]
    ) -> None:
        self._catalogue = catalogue
        self._key = key
        self._tls = tls
        self._lock = Lock()
        self._idle: dict[str, list[HTTPConnection]] = {}

    def ask(self, node: str, method: str, path: str, body: Sequence[Buffer] = (), seconds: float = 5.0) -> PeerAnswer:
        """Send a request to the shard `node` and return its response. Raises PeerFailed."""
        with PeerRequest(self, node, method, path, body, seconds) as request:
            return request.answer()

    def address_of(self, node: str) -> str:
        """Return the address of a shard. Raises PeerFailed."""
        found = self._catalogue().nodes.get(node)
        if found is None:
            raise PeerFailed(f"the catalogue has no shard {node!r}")
        return found.address

    def headers_for(self, node: str) -> dict[str, str]:
        """Return the header fields of a request to a shard."""
        key = self._key()
        fields = {NODE: node, "Content-Type": "application/octet-stream"}
        return fields if key is None else fields | {"Authorization": f"Bearer {key}"}

    def take(self, address: str) -> HTTPConnection:
        """Return an idle connection to an address, or a new one that is opened on first use."""
        with self._lock:
            idle = self._idle.get(address)
            if idle:
                return idle.pop()
        return shard_connection(address, self._tls(), CONNECT_S)

    def give_back(self, address: str, connection: HTTPConnection) -> None:
        """Keep a connection for reuse. Its response must have been read completely."""
        with self._lock:
            idle = self._idle.setdefault(address, [])
            if connection.sock is not None and len(idle) < _KEPT:
                idle.append(connection)
                return
        connection.close()

    def forget(self) -> None:
        """Close idle connections to addresses that are no longer in the catalogue."""
        self._keep_only({node.address for node in self._catalogue().nodes.values()})

    def close(self) -> None:
        """Close all idle connections."""
        self._keep_only(())

    def _keep_only(self, addresses: Collection[str]) -> None:
        with self._lock:
            for address in [one for one in self._idle if one not in addresses]:
                for connection in self._idle.pop(address):
                    connection.close()


class PeerRequest:
    """A request that has been sent. `answer` waits for its response and reports failures."""

    def __init__(self, peers: Peers, node: str, method: str, path: str, body: Sequence[Buffer], seconds: float) -> None:
        self._peers = peers
        self._node = node
        self._asked = method, quote(path, safe="/?=&"), body
        self._seconds = seconds
        self._address = ""
        self._connection: HTTPConnection | None = None
        self._failure = ""
        self._was_kept = False
        self._send()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def answer(self) -> PeerAnswer:
        """Return the whole response. Raises PeerFailed."""
        while not self._failure:
            connection = self._connection
            assert connection is not None
            try:
                found = connection.getresponse()
                body = found.read()
            except (OSError, HTTPException) as error:
                self._fail(error)
                continue
            self._connection = None
            self._peers.give_back(self._address, connection)
            return PeerAnswer(found.status, body)
        raise PeerFailed(f"{self._node}: {self._failure}")

    def _send(self) -> None:
        try:
            self._address = self._peers.address_of(self._node)
        except PeerFailed as failure:
            self._failure = str(failure)
            return
        method, path, body = self._asked
        self._was_kept = False
        try:
            fields = self._peers.headers_for(self._node) | {"Content-Length": str(sum(map(len, body)))}
            self._connection = connection = self._peers.take(self._address)
            self._was_kept = connection.sock is not None
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(self._seconds)
            connection.request(method, path, b"".join(body), fields)
        except (OSError, HTTPException) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Record the failure of the request.

        If the request used a kept connection, send it again, because the shard may have closed that connection. All
        requests between shards are safe to repeat.
        """
        self._drop()
        if self._was_kept and not isinstance(error, TimeoutError):
            self._send()
        else:
            self._failure = str(error) or type(error).__name__

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
