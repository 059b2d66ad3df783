"""The clock, the network and the processes of a simulated cluster."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from tests.cluster.simulation.process_loop import ProcessLoop
from tests.cluster.simulation.service_calls import Answer, Asked, Sent


@dataclass
class Network:
    """What may happen to a message on its way. Times are in seconds."""

    loss: float = 0.0
    late: float = 0.0
    """The share of messages that take up to `latest` seconds."""
    latest: float = 8.0
    cut: set[frozenset[str]] = field(default_factory=set)
    """Pairs of machines between which nothing passes."""


class World:
    """Events in the order of their time; nothing else happens."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.network = Network()
        self.processes: dict[str, Process] = {}
        """By address."""
        self.ids = count(1)
        """For requests: an answer to one of a process that has crashed is none to the next process at its address."""
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0

    def after(self, delay: float, do: Callable[..., None], *arguments: Any) -> None:
        """Do something `delay` seconds from now."""
        self._order += 1
        heapq.heappush(self._queue, (self.now + delay, self._order, do, arguments))

    def run(self, until: float) -> None:
        """Let time pass."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            self.now, _, do, arguments = heapq.heappop(queue)
            do(*arguments)
        self.now = until

    def delay(self) -> float:
        """How long a message is on its way."""
        random = self.random
        if self.network.late and random.random() < self.network.late:
            return random.random() * self.network.latest
        return 0.001 + 0.004 * random.random()

    def is_cut(self, one: str, other: str) -> bool:
        """Whether nothing passes between two machines."""
        return bool(self.network.cut) and one != other and frozenset((one, other)) in self.network.cut

    def send(self, sender: Process, address: str, message: Sent) -> None:
        """Send a message; it arrives, sooner or later, or never."""
        if not self.network.loss or self.random.random() >= self.network.loss:
            self.after(self.delay(), self._arrive, sender.machine, sender.address, address, message)

    def _arrive(self, machine: str, sender: str, address: str, message: Sent) -> None:
        process = self.processes.get(address)
        if process is not None and not self.is_cut(machine, process.machine):
            process.run(process.receive, sender, message)

    def answers(self, address: str, machine: str) -> bool:
        """Whether somebody listens at an address, so that a connection from `machine` is not refused."""
        process = self.processes.get(address)
        return process is not None and process.alive and not self.is_cut(machine, process.machine)

    def refuses(self, address: str, machine: str) -> bool:
        """Whether the machine of an address can be reached, and nobody listens there."""
        process = self.processes.get(address)
        return process is not None and not process.alive and not self.is_cut(machine, process.machine)


class Process:
    """A process on a machine. It may be stopped for a while (`pause`), and it may crash; what it had to do is lost."""

    def __init__(self, world: World, machine: str, address: str) -> None:
        self.world = world
        self.machine = machine
        self.address = address
        self.alive = True
        self.paused_until = 0.0
        self.loop = ProcessLoop(self)  # type: ignore[abstract]
        self._asked: dict[int, asyncio.Future[Answer | None]] = {}
        world.processes[address] = self

    def receive(self, sender: str, message: Sent) -> None:
        """A message has come."""
        raise NotImplementedError

    def run(self, do: Callable[..., None], *arguments: Any) -> None:
        """Do something, if the process is there; later, where it is stopped."""
        if not self.alive:
            return
        if self.world.now < self.paused_until:
            # Not all at one time: what waits comes in the order in which it would have come.
            self.world.after(self.paused_until - self.world.now + 1e-6, self.run, do, *arguments)
            return
        do(*arguments)
        self.loop.run_ready()

    def after(self, delay: float, do: Callable[..., None], *arguments: Any) -> None:
        """Do something `delay` seconds from now, if the process is there then."""
        self.world.after(delay, self.run, do, *arguments)

    def every(self, seconds: float, do: Callable[[], None]) -> None:
        """Do something now and then."""

        def again() -> None:
            do()
            self.after(seconds * (0.9 + 0.2 * self.world.random.random()), again)

        self.after(seconds * self.world.random.random(), again)

    def start(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        """Run a coroutine function as the process's work. What it raises ends the schedule."""
        self.run(lambda: self.loop.create_task(work(*arguments)).add_done_callback(_result))

    async def ask(self, address: str, asked: Asked, seconds: float) -> Answer | None:
        """Ask a process; None if it does not answer in time."""
        found: asyncio.Future[Answer | None] = self.loop.create_future()
        self._asked[asked.request_id] = found
        self.world.send(self, address, asked)
        self.after(seconds, self._answered, asked.request_id, None)
        return await found

    def take_answer(self, answer: Answer) -> None:
        """An answer has come; those that come late are not heeded."""
        self._answered(answer.request_id, answer)

    def _answered(self, request_id: int, answer: Answer | None) -> None:
        found = self._asked.pop(request_id, None)
        if found is not None and not found.done():
            found.set_result(answer)

    def crash(self) -> None:
        """It is gone."""
        self.alive = False
        if self.world.processes.get(self.address) is self:
            del self.world.processes[self.address]


def _result(task: asyncio.Task[Any]) -> None:
    task.result()
