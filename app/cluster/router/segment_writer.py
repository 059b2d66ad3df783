"""Write the rows of one segment to one shard, in a separate thread, and make shards pull segments."""

from __future__ import annotations

import socket
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from queue import Empty, Full, Queue
from ssl import SSLContext
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, NamedTuple

import orjson

from app.api.own_header_fields import NODE
from app.api.route_table import path_of
from app.cluster.shard.pull_order import PullOrder
from app.cluster.shard_map import digest_of
from app.tensors.buffer_type import Buffer

RAW: Final = "application/octet-stream"
CONNECT_S: Final = 3.0
ANSWER_S: Final = 30.0
"""Maximum seconds that a shard may be silent while it is receiving rows."""
SLOWEST: Final = 10_000_000
"""The router gives up on a shard that makes rows durable, or pulls them, at fewer bytes per second than this."""
SLOWEST_INDEX: Final = 1_000_000
"""The router gives up on a shard that indexes keys at fewer keys per second than this."""
SLOWEST_ORIGIN: Final = 1 << 14
"""A shard gives up on its own if it pulls rows from their origin at fewer bytes per second than this."""
ROOM_S: Final = 15.0
"""Maximum seconds for which a shard may be out of space. Shards take several seconds to drop segments that are no
longer listed.
"""
_PAUSE_S: Final = 0.2
_LOOK_S: Final = 0.5
_WAITING: Final = 1
"""Maximum number of pieces queued for a shard, not counting the one being sent. The upload is charged for these
pieces.
"""
_READ_BYTES: Final = 1 << 22
"""Number of bytes read from a shard at a time."""
_MAX_ANSWER: Final = 1 << 20


class ShardFailed(Exception):
    """A shard did not do what was requested. `code` is the code of its error, or "" if it sent none."""

    def __init__(self, detail: str, code: str = "") -> None:
        super().__init__(detail)
        self.code = code


class ShardAccess(NamedTuple):
    """Parameters for calling shards: an API key, and TLS if there are authorities."""

    key: str | None
    tls: SSLContext | None = None


class SegmentBody(NamedTuple):
    """A segment as sent to a shard: the path, the media type, and the number of bytes.

    `room` is the number of bytes for which the shard must have space, and `keys` is the number of keys that the shard
    indexes before it accepts the rows.
    """

    path: str
    media_type: str
    size: int
    room: int
    keys: int = 0


class SegmentWriter:
    """Send the rows of one segment to the shard `node` at `address`.

    If the shard does not have the rows, `failure` says why.

    If `finish` returns and there is no failure, the shard durably has the rows. Otherwise, none of them remain.
    """

    def __init__(
        self, access: ShardAccess, node: str, address: str, body: SegmentBody, is_lost: Callable[[], bool]
    ) -> None:
        """Start the writer's thread. `is_lost` returns whether the shard's machine is known to be lost."""
        self.node = node
        self.failure: ShardFailed | None = None
        self.digest = ""
        self._address = address
        self._is_lost = is_lost
        self._body = body
        self._pieces: Queue[Buffer] = Queue(_WAITING)
        self._done = Event()
        self._connection = _connection(access, address)
        self._fields = _fields(access, node)
        self._thread = Thread(target=self._run, name="segment", daemon=True)
        self._thread.start()

    def write(self, piece: Buffer) -> None:
        """Queue the next rows. Blocks while earlier ones are waiting to be sent. Does nothing after a failure."""
        while not self._done.is_set():
            try:
                self._pieces.put(piece, timeout=_LOOK_S)
                return
            except Full:
                self._check_machine()

    def end(self) -> None:
        """Mark the end of the rows."""
        self.write(b"")

    def finish(self) -> None:
        """Wait until the shard has the rows or has failed."""
        while not self._done.wait(_LOOK_S):
            self._check_machine()

    def give_up(self, why: str = "the upload has ended") -> None:
        """Drop the connection, so that none of the rows remain."""
        if not self._done.is_set():
            self.failure = self.failure or ShardFailed(f"{self._address}: {why}")
            _break_connection(self._connection)
            with suppress(Full):
                self._pieces.put_nowait(b"")

    def _check_machine(self) -> None:
        if self._is_lost():
            self.give_up("its machine is lost")

    def _run(self) -> None:
        try:
            _connect(self._connection)
            self._find_room()
            self._send()
            if self.failure is not None:
                return
            self._connection.sock.settimeout(ANSWER_S + self._body.size / SLOWEST)
            self.digest = _digest(_answer(self._connection, self._address))
        except ShardFailed as failure:
            self.failure = self.failure or failure
        except (OSError, HTTPException) as error:
            self.failure = self.failure or ShardFailed(f"{self._address}: {error}")
        finally:
            self._connection.close()
            self._done.set()
            with suppress(Empty):  # let a thread that is waiting to queue a piece see that the writer is done
                self._pieces.get_nowait()

    def _find_room(self) -> None:
        """Wait until the shard has enough space.

        Segments that the catalogue no longer lists may take up space for several seconds.
        """
        end = monotonic() + ROOM_S
        path = f"{path_of('checkRoom')}?bytes={self._body.room}"
        while True:
            if self.failure is not None:  # the upload was given up
                raise self.failure
            self._connection.request("GET", path, headers=self._fields)
            try:
                _answer(self._connection, self._address)
            except ShardFailed as failure:
                if failure.code != "insufficient_storage" or monotonic() > end:
                    raise
                self._done.wait(_PAUSE_S)
            else:
                return

    def _send(self) -> None:
        path, media_type, size, _, keys = self._body
        self._connection.putrequest("PUT", path)
        for name, value in {**self._fields, "Content-Type": media_type, "Content-Length": str(size)}.items():
            self._connection.putheader(name, value)
        self._connection.endheaders()
        self._connection.sock.settimeout(ANSWER_S + keys / SLOWEST_INDEX)
        try:
            while piece := self._pieces.get():
                self._connection.send(piece)
        except OSError:
            # The shard may have refused and given a reason before it read everything.
            with suppress(OSError, HTTPException):
                _answer(self._connection, self._address)
            raise


class Pulling:
    """Make shards pull segments, and read their rows. `give_up` ends everything that is in progress."""

    def __init__(self, access: ShardAccess) -> None:
        self._access = access
        self._open: dict[HTTPConnection, str] = {}
        """The shard of each open connection."""
        self._is_over = False

    def pull(self, node: str, address: str, tensor: str, order: PullOrder) -> str:
        """Make a shard pull a segment. Returns the segment's digest once it is complete there. Raises ShardFailed."""
        path = path_of("pullSegment", tensor=tensor)
        with self._open_connection(node, address) as connection:
            connection.sock.settimeout(ANSWER_S + order.size / (SLOWEST_ORIGIN if order.origin else SLOWEST))
            fields = {**_fields(self._access, node), "Content-Type": "application/json"}
            connection.request("POST", path, order.to_json(), fields)
            return _digest(_answer(connection, address))

    def read(self, node: str, address: str, tensor: str, rows: tuple[int, int], row: int) -> Iterator[bytes]:
        """Yield the rows `rows[0]` to `rows[1]` - 1 of a segment, each of `row` bytes, in pieces of whole rows.

        Raises ShardFailed.
        """
        left = (rows[1] - rows[0]) * row
        path = f"{path_of('tensorContent', name=tensor)}?rows={rows[0]}:{rows[1]}"
        with self._open_connection(node, address) as connection:
            connection.request("GET", path, headers={**_fields(self._access, node), "Accept": RAW})
            answer = connection.getresponse()
            if answer.status != 200 or answer.length != left:
                raise ShardFailed(f"{address}: status {answer.status}, {answer.length} bytes instead of {left}")
            while left:
                wanted = min(left, max(1, _READ_BYTES // row) * row)
                piece = answer.read(wanted)
                if len(piece) != wanted:
                    raise ShardFailed(f"{address}: it broke off {left - len(piece)} bytes before the end")
                left -= wanted
                yield piece

    def give_up(self) -> None:
        """Drop all connections so that shards discard what they have pulled so far. Thread-safe."""
        self._is_over = True
        self.keep_only(())

    def keep_only(self, alive: Container[str]) -> None:
        """Drop the connections to shards that are not in `alive`."""
        for connection, node in list(self._open.items()):
            if node not in alive:
                _break_connection(connection)

    @contextmanager
    def _open_connection(self, node: str, address: str) -> Iterator[HTTPConnection]:
        connection = _connection(self._access, address)
        try:
            _connect(connection)
            self._open[connection] = node
            if self._is_over:
                raise ShardFailed(f"{address}: the upload has ended")
            yield connection
        except (OSError, HTTPException) as error:
            raise ShardFailed(f"{address}: {error}") from None
        finally:
            self._open.pop(connection, None)
            connection.close()


def _break_connection(connection: HTTPConnection) -> None:
    opened = connection.sock
    if opened is not None:
        with suppress(OSError):
            opened.shutdown(socket.SHUT_RDWR)


def _connection(access: ShardAccess, address: str) -> HTTPConnection:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if access.tls is not None:
        return HTTPSConnection(host, int(port), timeout=CONNECT_S, context=access.tls)
    return HTTPConnection(host, int(port), timeout=CONNECT_S)


def _connect(connection: HTTPConnection) -> None:
    connection.connect()
    connection.sock.settimeout(ANSWER_S)


def _fields(access: ShardAccess, node: str) -> dict[str, str]:
    """Return the header fields of every request. A different shard at this address would refuse them."""
    return {NODE: node} if access.key is None else {NODE: node, "Authorization": f"Bearer {access.key}"}


def _answer(connection: HTTPConnection, address: str) -> Any:
    """Return the JSON of a successful response.

    Raises ShardFailed if the response reports a failure. Also raises OSError and HTTPException.
    """
    answer = connection.getresponse()
    text = answer.read(_MAX_ANSWER)
    try:
        found = orjson.loads(text) if text else {}
    except ValueError:
        found = None
    if answer.status in (200, 201, 204) and isinstance(found, dict):
        return found
    code = found.get("code", "") if isinstance(found, dict) else ""
    raise ShardFailed(f"{address}: status {answer.status}: {text[:300].decode(errors='replace')}", code)


def _digest(found: Any) -> str:
    """Return the digest of a shard's segment, from the response to a pull or to a PUT."""
    keys = found.get("keys")
    return digest_of(str(found.get("sha256", "")), None if keys is None else str(keys.get("sha256", "")))
