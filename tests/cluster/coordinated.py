"""A cluster with a coordinator for the tests, without Ray: the coordinator in a thread, shards that are real services.

A router is a process of its own, whose link comes to the coordinator by a socket.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLContext
from threading import Event, Thread
from typing import Any

from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.run_coordinator import CoordinatorRunner
from app.cluster.process_link import serve_link
from app.cluster.shard.shard_agent import ShardAgent
from app.imports.source_urls import AllowedSources, parse_prefix
from tests.cluster.memory_records import MemoryRecords
from tests.http.conftest import Start
from tests.http.server import Server

OPTIONS = ClusterOptions(ranges=4, replicas=2, lost_after=3, drop_after=0.5, publish_timeout=3)
TICK_S = 0.1


class RunningCoordinator:
    """A coordinator on a loop of its own thread. It is a link, too; `stop` and `begin` restart it."""

    def __init__(self, options: ClusterOptions = OPTIONS) -> None:
        self.records = MemoryRecords()
        self.options = options
        self.loop = asyncio.new_event_loop()
        self.thread = Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.exchanging: CoordinatorRunner | None = None
        self.task: asyncio.Task[None] | None = None
        self.starts = 0
        self.begin()

    def begin(self) -> None:
        """Start it, from the records."""
        self.starts += 1

        async def start() -> None:
            self.exchanging = CoordinatorRunner(f"coordinator-{self.starts}", self.options, self.records, TICK_S)
            self.task = asyncio.create_task(self.exchanging.run())

        asyncio.run_coroutine_threadsafe(start(), self.loop).result(10)

    def stop(self) -> None:
        """End it: from now on it does not answer."""

        async def cancel() -> None:
            assert self.task is not None
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task
            self.exchanging = None

        asyncio.run_coroutine_threadsafe(cancel(), self.loop).result(10)

    def close(self) -> None:
        """End it and its thread."""
        if self.exchanging is not None:
            self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()

    # As a link

    def exchange(self, sender: str, texts: Sequence[bytes], wait_s: float) -> list[bytes]:
        running = self.exchanging
        if running is None:
            raise OSError("the coordinator does not run")
        asked = asyncio.run_coroutine_threadsafe(running.exchange(sender, texts, wait_s), self.loop)
        try:
            return asked.result(wait_s + 10)
        except (FutureTimeout, asyncio.CancelledError):
            raise OSError("the coordinator does not answer") from None

    def key(self) -> str | None:
        return None

    def status(self) -> Any:
        """What `gathernd cluster status` shows."""

        async def ask() -> Any:
            assert self.exchanging is not None
            return self.exchanging.status()

        return asyncio.run_coroutine_threadsafe(ask(), self.loop).result(10)


@contextmanager
def listening(link: RunningCoordinator, path: Path) -> Iterator[Path]:
    """`link` at a Unix socket, for routers."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    Thread(target=serve, args=(connection,), daemon=True).start()

        def serve(connection: socket.socket) -> None:
            # A router that ends with an answer unread resets its connection, where a pipe would be at its end.
            with (
                suppress(ConnectionError),
                connection,
                connection.makefile("rb") as asked,
                connection.makefile("wb") as answers,
            ):
                serve_link(link, asked, answers)

        Thread(target=accept, daemon=True).start()
        yield path
        listener.shutdown(socket.SHUT_RDWR)


@dataclass
class Agents:
    """Agents in threads, by the names of their shards."""

    link: RunningCoordinator
    folder: Path
    capacity: int = 1 << 30
    tls: SSLContext | None = None
    import_from: Sequence[str] = ()
    stops: dict[str, tuple[Event, Thread]] = field(default_factory=dict)

    def begin(self, name: str, address: str) -> None:
        own = self.folder / name
        own.mkdir(parents=True, exist_ok=True)
        allowed = AllowedSources([parse_prefix(text) for text in self.import_from])
        agent = ShardAgent(name, address, own, self.capacity, self.link, None, self.tls, allowed)
        stop = Event()
        thread = Thread(target=agent.run, args=(stop,), daemon=True)
        thread.start()
        self.stops[name] = stop, thread

    def end(self, name: str) -> None:
        stop, thread = self.stops.pop(name)
        stop.set()
        thread.join(20)

    def end_all(self) -> None:
        for name in list(self.stops):
            self.end(name)


@dataclass
class Coordinated:
    """A coordinator, its shards by name, and a router."""

    coordinator: RunningCoordinator
    agents: Agents
    shards: dict[str, Server]
    router: Server
    source: str = ""
    """Where imports come from."""


@contextmanager
def coordinated(
    start: Start,
    folder: Path,
    count: int = 3,
    options: ClusterOptions = OPTIONS,
    capacity: int = 1 << 30,
    flags: Sequence[str] = (),
    shards: Sequence[Server] = (),
    tls: SSLContext | None = None,
    import_from: Sequence[str] = (),
) -> Iterator[Coordinated]:
    """A cluster of `count` shards, or of those that run already, asked by `tls`; `flags` are the router's."""
    with ExitStack() as stack:
        coordinator = RunningCoordinator(options)
        stack.callback(coordinator.close)
        path = stack.enter_context(listening(coordinator, folder / "link"))
        agents = Agents(coordinator, folder / "agents", capacity, tls, import_from)
        found = shards or [stack.enter_context(start()) for _ in range(count)]
        running = {f"s{number}": shard for number, shard in enumerate(found)}
        stack.callback(agents.end_all)
        for name, shard in running.items():
            agents.begin(name, f"127.0.0.1:{shard.port}")
        until(lambda: len(coordinator.status()["nodes"]) == len(running), "all shards are heard")
        router = stack.enter_context(routing(start, path, *flags))
        yield Coordinated(coordinator, agents, running, router)


def routing(start: Start, path: Path, *flags: str) -> AbstractContextManager[Server]:
    """A router whose coordinator is at the socket `path`."""
    return start(*flags, command=(sys.executable, "-m", "tests.cluster.routed_app", str(path)))


def until(look: Callable[[], object], what: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < end, f"not after {seconds} s: {what}"
        time.sleep(0.05)
