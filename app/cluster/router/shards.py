"""The shards that a router calls: persistent connections to each address, and counters for each shard.

Everything here belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from ssl import SSLContext
from time import perf_counter
from typing import Final

from app.cluster.router.replica_choice import ReplicaChoice
from app.cluster.router.row_sinks import Sink
from app.cluster.router.shard_connection import ContentCheck, Failure, ShardConnection
from app.tensors.buffer_type import Buffer

MAX_CONNECTIONS: Final = 64
"""Maximum number of connections to one shard. Further requests wait until a connection is free."""
CONNECT_S: Final = 3.0
"""Maximum seconds to open a connection. A lost machine does not respond, and the kernel would keep trying for two
minutes.
"""

AskDone = Callable[["Ask", Failure | None], None]
AskBegun = Callable[["Ask"], None]


class Ask:
    """One request to one shard. `done` is called once, unless the ask is dropped first.

    `begun` is called before the response's first byte goes to the sink. After the ask has ended, `seconds` is its
    duration.
    """

    __slots__ = (
        "_begun", "_check", "_connection", "_dropped", "_is_waiting", "_patience", "_pieces", "_retried", "_shard",
        "_since", "_sink", "_timer", "done", "has_begun", "seconds",
    )  # fmt: skip

    def __init__(
        self,
        shard: Shard,
        pieces: Sequence[Buffer],
        sink: Sink,
        check: ContentCheck | None,
        patience: float,
        done: AskDone,
        begun: AskBegun,
    ) -> None:
        self._shard = shard
        self._pieces = pieces
        self._sink = sink
        self._check = check
        self._patience = patience
        self._connection: ShardConnection | None = None
        self._retried = self._dropped = self._is_waiting = False
        self._since = perf_counter()
        self._timer: asyncio.TimerHandle | None = None
        self._begun = begun
        self.done = done
        self.has_begun = False
        self.seconds = 0.0

    def drop(self) -> None:
        """Drop the ask, because it is no longer needed."""
        self._dropped = True
        if self._connection is not None:
            self._connection.drop()
        else:
            self._finish(Failure("dropped", ""))

    def start(self) -> None:
        """Send the request on a free connection, or as soon as a connection is free."""
        shard = self._shard
        shard.in_flight += 1
        if shard.idle:
            self._send(shard.idle.pop())
            return
        # The ask waits for a connection at most as long as it would wait for a response.
        self._timer = asyncio.get_running_loop().call_later(self._patience, self._on_timeout)
        self._is_waiting = True
        shard.waiting.append(self)
        if shard.open < MAX_CONNECTIONS:
            shard.open_connection()

    def send_on(self, connection: ShardConnection) -> None:
        """Send the request on a connection that has become free."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_waiting = False
        self._send(connection)

    def refuse(self, failure: Failure) -> None:
        """Fail, because no connection is available."""
        self._is_waiting = False
        self._finish(failure)

    def _send(self, connection: ShardConnection) -> None:
        self._connection = connection
        connection.ask(self._pieces, self._sink, self._check, self._patience, self._on_answer, self._on_begin)

    def _on_begin(self) -> None:
        self.has_begun = True
        self._begun(self)

    def _on_timeout(self) -> None:
        self._timer = None
        self._finish(Failure("late", f"no connection was free for {self._patience:.1f} s"))

    def _on_answer(self, connection: ShardConnection, failure: Failure | None) -> None:
        shard = self._shard
        self._connection = None
        if (
            failure is not None
            and failure.kind == "lost"
            and connection.answers
            and not connection.started_answer
            and not self._retried
            and not self._dropped
        ):
            # The shard closed a connection that it considered idle, which says nothing about the shard's state.
            self._retried = True
            shard.in_flight -= 1
            self.start()
            return
        if connection.usable:
            shard.return_connection(connection)
        self._finish(failure)

    def _finish(self, failure: Failure | None) -> None:
        shard = self._shard
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_waiting:  # `remove` is slow, because thousands may be waiting
            self._is_waiting = False
            shard.waiting.remove(self)
        shard.in_flight -= 1
        self.seconds = perf_counter() - self._since
        shard.count(failure, self.seconds)
        if not self._dropped:
            self.done(self, failure)


class Shard:
    """A shard at an address (host:port). New connections use TLS if `tls` is given.

    `idle` holds the free connections, `open` counts the connections that are open or being opened, and `waiting` holds
    the asks that are waiting for a connection. `outcomes` counts responses by "ok" or the kind of failure, and
    `seconds` is their total duration.
    """

    def __init__(self, address: str, tls: SSLContext | None = None) -> None:
        self.address = address
        self.tls = tls
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self.idle: list[ShardConnection] = []
        self.open = 0
        self.in_flight = 0
        self.waiting: deque[Ask] = deque()
        self.outcomes: dict[str, int] = {}
        self.seconds = 0.0
        self._opening: set[asyncio.Task[None]] = set()
        self._closing = False

    def return_connection(self, connection: ShardConnection) -> None:
        """Hand a freed connection to a waiting request, or keep it if none is waiting."""
        if self.waiting:
            self.waiting.popleft().send_on(connection)
        elif self._closing:
            connection.close()
        else:
            self.idle.append(connection)

    def count(self, failure: Failure | None, seconds: float) -> None:
        """Count an ask that has ended."""
        outcome = "ok" if failure is None else failure.kind
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
        self.seconds += seconds

    def open_connection(self) -> None:
        """Open another connection for the waiting asks."""
        self.open += 1
        task = asyncio.get_running_loop().create_task(self._open())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, connection = await loop.create_connection(
                    lambda: ShardConnection(self._on_end), self._host, self._port, ssl=self.tls
                )
        except (OSError, ValueError) as error:  # ValueError: the host is invalid
            self._on_open_failed(getattr(error, "strerror", None) or str(error) or "nothing answers")
            return
        except asyncio.CancelledError:
            self._on_open_failed("the map does not name this shard any more")
            raise
        self.return_connection(connection)

    def _on_open_failed(self, why: str) -> None:
        self.open -= 1
        if not self.open:  # if other connections are open, the waiting asks will get one of them
            failure = Failure("refused", f"no connection: {why}")
            while self.waiting:
                self.waiting.popleft().refuse(failure)

    def _on_end(self, connection: ShardConnection) -> None:
        self.open -= 1
        if connection in self.idle:
            self.idle.remove(connection)
        if len(self._opening) < len(self.waiting) and not self._closing:
            self.open_connection()

    def close(self) -> None:
        """Close idle connections now, and the others as soon as they are idle."""
        self._closing = True
        for task in self._opening:
            task.cancel()
        for connection in list(self.idle):
            connection.close()


class Shards:
    """All shards by address, over TLS if `tls` is given. `choice` decides which replica is tried first."""

    def __init__(self, tls: SSLContext | None = None) -> None:
        self.tls = tls
        self.choice = ReplicaChoice()
        self._shards: dict[str, Shard] = {}

    def get(self, address: str) -> Shard:
        """Return the shard at an address, creating it if necessary."""
        shard = self._shards.get(address)
        if shard is None:
            shard = self._shards[address] = Shard(address, self.tls)
        return shard

    def use_tls(self, tls: SSLContext) -> None:
        """Open new connections with `tls`. Existing connections stay open."""
        self.tls = tls
        for shard in self._shards.values():
            shard.tls = tls

    def known(self) -> list[Shard]:
        """Return the shards that have been called."""
        return list(self._shards.values())

    def keep_only(self, addresses: frozenset[str]) -> None:
        """Close and forget shards that are no longer in the map."""
        for address in self._shards.keys() - addresses:
            self._shards.pop(address).close()
        self.choice.keep_only(addresses)

    def close(self) -> None:
        """Close all connections."""
        self.keep_only(frozenset())
