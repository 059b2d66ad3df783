"""Requests at a steady rate, or one after another, over some connections, from a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import uvloop

from benchmarks import common


@dataclass
class Seen:
    """What a run of the generator saw: seconds of each answer by its status, and what went wrong.

    `good` counts the answers of status 200, those that came after the end too.
    """

    answers: dict[int, list[float]] = field(default_factory=dict)
    offered: int = 0
    unsent: int = 0
    broken: int = 0
    good: int = 0
    seconds: float = 0.0

    def rate(self, status: int) -> float:
        """Answers of `status` a second."""
        return len(self.answers.get(status, ())) / self.seconds

    def quantile(self, status: int, share: float) -> float:
        """Milliseconds within which `share` of the answers of `status` came."""
        times = sorted(self.answers.get(status, ()))
        return times[min(len(times) - 1, int(share * len(times)))] * 1e3 if times else 0.0


class Connection(asyncio.Protocol):
    """Sends one request at a time; `done` is told the status of each answer once it is whole, 0 for none."""

    def __init__(self, done: Callable[[Connection, int], None]) -> None:
        self.done = done
        self.due = 0.0
        self._status = self._missing = 0
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        """Ready to send."""
        self.transport = transport

    def send(self, request: bytes, due: float) -> None:
        """Ask; the answer's clock started at `due`."""
        self.due = due
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of the answer."""
        if not self._missing:
            self._head += data
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._status = int(head[9:12])
            fields = head.lower()
            self._missing = int(fields.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self._head = b""
            data = rest
        self._missing -= len(data)
        if self._missing == 0:
            self.done(self, self._status)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has closed."""
        self.done(self, 0)


class Generator:
    """Asks for `seconds`: at `rate` requests a second, or, where that is 0, again with each answer."""

    def __init__(self, port: int, request: bytes, seconds: float, rate: float, connections: int) -> None:
        self.port = port
        self.request = request
        self.seconds = seconds
        self.rate = rate
        self.connections = connections
        self.seen = Seen(seconds=seconds)
        self._idle: list[Connection] = []
        self._open = 0
        self._end = 0.0

    async def run(self) -> Seen:
        """Ask until the time is over, and wait for the answers that are still to come, 20 s at most."""
        loop = asyncio.get_running_loop()
        for _ in range(self.connections):
            _, connection = await loop.create_connection(lambda: Connection(self._done), "127.0.0.1", self.port)
            self._idle.append(connection)
        self._open = self.connections
        begun = perf_counter()
        self._end = begun + self.seconds
        if self.rate:
            while (now := perf_counter()) < self._end:
                while self.seen.offered < (now - begun) * self.rate:
                    self._ask(begun + self.seen.offered / self.rate)
                await asyncio.sleep(0.001)
        else:
            while self._idle:
                self._ask(perf_counter())
            await asyncio.sleep(self.seconds)
        until = perf_counter() + 20
        while len(self._idle) < self._open and perf_counter() < until:  # noqa: ASYNC110  (it waits for a count)
            await asyncio.sleep(0.01)
        return self.seen

    def _ask(self, due: float) -> None:
        self.seen.offered += 1
        if self._idle:
            self._idle.pop().send(self.request, due)
        else:
            self.seen.unsent += 1

    def _done(self, connection: Connection, status: int) -> None:
        now = perf_counter()
        if status == 0:
            self._open -= 1
            self.seen.broken += 1
            if connection in self._idle:
                self._idle.remove(connection)
            return
        self.seen.good += status == 200
        if now <= self._end:
            self.seen.answers.setdefault(status, []).append(now - connection.due)
        if self.rate or now > self._end:
            self._idle.append(connection)
        else:
            connection.send(self.request, now)


def _generate(pipe: Any, cores: set[int], *arguments: Any) -> None:
    os.sched_setaffinity(0, cores)
    uvloop.install()
    pipe.send(asyncio.run(Generator(*arguments).run()))


def generate(cores: set[int], port: int, request: bytes, seconds: float, rate: float, connections: int) -> Seen:
    """Run a generator in a process of its own, on `cores`."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=_generate, args=(theirs, cores, port, request, seconds, rate, connections), daemon=True
    )
    process.start()
    theirs.close()
    seen: Seen = ours.recv()
    process.join(20)
    return seen


def raw(request: common.Request) -> bytes:
    """The bytes of a request."""
    fields = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    head = f"POST {request.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}Content-Length: {len(request.body)}\r\n\r\n"
    return head.encode() + request.body
