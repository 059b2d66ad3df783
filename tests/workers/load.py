"""A client that keeps its connection until it is told to leave, and never repeats a request: what fails is counted."""

from __future__ import annotations

import json
import select
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from time import monotonic, sleep
from typing import NamedTuple

from tests.http.raw import Answer, Wire

BODY = {
    "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
    "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]},
}
CONTENT = json.dumps(BODY).encode()


def request(method: str = "POST", path: str = "/gathernd", body: bytes = CONTENT, **fields: str) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Connection(Wire):
    """A connection to the server, and the next one once the server has said that an answer is the last on it.

    It says so to some clients of a worker that has more connections than the others.
    """

    def __init__(self, port: int, timeout: float = 20) -> None:
        self._port, self._timeout = port, timeout
        self._open()

    def _open(self) -> None:
        super().__init__(socket.create_connection(("127.0.0.1", self._port), self._timeout))
        self._is_over = False

    def ask(self, content: bytes) -> Answer:
        """Send a request and read its answer. Raises OSError and EOFError."""
        if self._is_over:
            self.close()
            self._open()
        self.send(content)
        answer = self.read()
        self._is_over = answer.last
        return answer

    def gone(self) -> bool:
        """Whether the server has closed the connection, on which no answer is to come."""
        return bool(select.select([self.socket], [], [], 0)[0])

    def close(self) -> None:
        self.socket.close()


@contextmanager
def connected(port: int, number: int = 1) -> Iterator[list[Connection]]:
    """So many connections, all at once."""
    opened: list[Connection] = []
    try:
        for _ in range(number):
            opened.append(Connection(port))  # noqa: PERF401  (those that came about are closed, whatever fails)
        yield opened
    finally:
        for connection in opened:
            connection.close()


def one_of_each(opened: list[Connection]) -> list[Connection]:
    """Of these connections one to each worker."""
    ready = request("GET", "/readyz", b"")
    return list({connection.ask(ready).worker: connection for connection in opened}.values())


def ask_once(port: int, content: bytes) -> Answer:
    """A request on a connection of its own."""
    with connected(port) as (connection,):
        return connection.ask(content)


class Failure(NamedTuple):
    """A request that got no right answer: the worker that had answered before on its connection, when, and why."""

    worker: str
    when: float
    error: str


@dataclass
class Load:
    """What several clients saw: right answers by worker, and what failed.

    With `careful` a client looks whether its connection is still there before it asks, as connection pools do.
    """

    right: Counter[str] = field(default_factory=Counter)
    failed: list[Failure] = field(default_factory=list)
    total: int = 0
    pause: float = 0.002
    careful: bool = False
    _lock: Lock = field(default_factory=Lock)
    _stop: Event = field(default_factory=Event)

    def wait(self, seconds: float) -> None:
        """Let the load run."""
        sleep(seconds)

    def recent(self, seconds: float) -> Counter[str]:
        """Right answers of the next so many seconds."""
        with self._lock:
            before = self.right.copy()
        sleep(seconds)
        with self._lock:
            return self.right - before

    def _client(self, port: int) -> None:
        connection: Connection | None = None
        worker = "none"
        while not self._stop.is_set():
            with self._lock:
                self.total += 1
            try:
                if self.careful and connection is not None and connection.gone():
                    connection.close()
                    connection = None
                if connection is None:
                    connection, worker = Connection(port), "none"
                answer = connection.ask(request())
                worker = answer.worker
                if answer.status != 200 or json.loads(answer.body)["output"]["values"] != [0, 3]:
                    raise OSError(f"{answer.status} {answer.body!r}")
                with self._lock:
                    self.right[worker] += 1
                if answer.last:
                    connection.close()
                    connection = None
                sleep(self.pause)
            except (OSError, EOFError) as error:
                with self._lock:
                    self.failed.append(Failure(worker, monotonic(), repr(error)))
                if connection is not None:
                    connection.close()
                    connection = None
        if connection is not None:
            connection.close()


@contextmanager
def load(port: int, clients: int = 8, pause: float = 0.002, *, careful: bool = False) -> Iterator[Load]:
    """Requests from several clients, who rest `pause` seconds in between, as long as the context is open."""
    running = Load(pause=pause, careful=careful)
    threads = [Thread(target=running._client, args=(port,)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield running
    finally:
        running._stop.set()
        for thread in threads:
            thread.join(60)
    assert running.total == running.right.total() + len(running.failed)
