"""Who takes a connection: the worker that has fewer, but somebody always."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from time import monotonic
from typing import Any

import pytest

from app.server import connection_acceptor
from app.server.connection_acceptor import Acceptor
from app.server.connection_limit import ConnectionLimit
from app.telemetry.shared_counters import CounterGroup, Counters, SlotHeader, join

PATIENCE = 0.2
ENDLESS = 600.0


class Connections(asyncio.Protocol):
    """Keeps its connection among `open`."""

    def __init__(self, opened: set[Any]) -> None:
        self.opened = opened

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.opened.add(self)


Scenario = Callable[[Acceptor, socket.socket, set[Any], Counters, Counters], Coroutine[Any, Any, None]]
Run = Callable[..., None]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a scenario with an acceptor, its listener, what it has taken, its counters, and those of another worker.

    For another worker the acceptor waits so many seconds.
    """
    group = CounterGroup(3)
    mine, other = join(group.fd, 1), join(group.fd, 2)

    async def whole(scenario: Scenario) -> None:
        opened: set[Any] = set()
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            limit = ConnectionLimit(100, opened, mine)
            taking = Acceptor([listener], lambda: Connections(opened), opened, mine, dict, limit)
            taking.start()
            other.header[SlotHeader.ACCEPTING] = 1
            try:
                await scenario(taking, listener, opened, mine, other)
            finally:
                taking.stop(rest=False)
                await taking.finish_setup()
                for connection in opened:
                    connection.transport.close()
                await asyncio.sleep(0.01)

    def run_whole(scenario: Scenario, patience: float = PATIENCE) -> None:
        monkeypatch.setattr(connection_acceptor, "_YIELD_S", patience)
        asyncio.run(whole(scenario))

    yield run_whole
    os.close(group.fd)


async def until_open(opened: set[Any], count: int) -> None:
    async with asyncio.timeout(60):
        while len(opened) < count:  # noqa: ASYNC110  (the kernel changes it)
            await asyncio.sleep(0.005)


async def connect(listener: socket.socket) -> asyncio.StreamWriter:
    return (await asyncio.open_connection(*listener.getsockname()))[1]


def test_the_one_with_fewer_takes_it_at_once(run: Run) -> None:
    async def scenario(
        taking: Acceptor, listener: socket.socket, opened: set[Any], mine: Counters, other: Counters
    ) -> None:
        for number in range(5):
            other.header[SlotHeader.CONNECTIONS] = number
            writer = await connect(listener)
            await until_open(opened, number + 1)
            assert mine.header[SlotHeader.CONNECTIONS] <= number + 1
            writer.close()

    run(scenario, ENDLESS)


def test_the_one_with_more_waits_for_the_other_and_then_takes_it(run: Run) -> None:
    async def scenario(
        taking: Acceptor, listener: socket.socket, opened: set[Any], mine: Counters, other: Counters
    ) -> None:
        first = await connect(listener)
        await until_open(opened, 1)
        begun = monotonic()
        second = await connect(listener)
        await until_open(opened, 2)
        assert monotonic() - begun >= PATIENCE, "the other has none: it may go first"
        first.close()
        second.close()

    run(scenario)


def test_a_worker_that_takes_none_is_not_waited_for(run: Run) -> None:
    async def scenario(
        taking: Acceptor, listener: socket.socket, opened: set[Any], mine: Counters, other: Counters
    ) -> None:
        other.header[SlotHeader.ACCEPTING] = 0
        writers = [await connect(listener) for _ in range(5)]
        await until_open(opened, 5)
        for writer in writers:
            writer.close()

    run(scenario, ENDLESS)


@pytest.mark.parametrize("rest", [True, False])
def test_what_waits_at_the_end_is_taken_if_nobody_else_will(rest: bool, run: Run) -> None:
    async def scenario(
        taking: Acceptor, listener: socket.socket, opened: set[Any], mine: Counters, other: Counters
    ) -> None:
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.connect(listener.getsockname())  # the listening side takes part in the kernel only
            waiting.append(client)
        taking.stop(rest=rest)
        await taking.finish_setup()
        assert len(opened) == (4 if rest else 0)
        assert mine.header[SlotHeader.ACCEPTING] == 0
        for client in waiting:
            client.close()

    run(scenario)


def test_too_many_connections_send_some_clients_over(run: Run) -> None:
    class Busy:
        leaving = False
        last_received = 10.0

    async def scenario(
        taking: Acceptor, listener: socket.socket, opened: set[Any], mine: Counters, other: Counters
    ) -> None:
        many = {Busy() for _ in range(12)}
        idle = next(iter(many))
        idle.last_received = 1.0
        taking._connections = many
        for of_other, expected in [(12, 0), (9, 0), (0, 6)]:
            other.header[SlotHeader.CONNECTIONS] = of_other
            taking.balance(10.5)
            assert sum(connection.leaving for connection in many) == expected, of_other
        assert not idle.leaving

    run(scenario)
