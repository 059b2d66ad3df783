"""A coordinator on a real clock: it takes over, goes on after a crash, and yields."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.coordinator import Coordinator
from app.cluster.coordinator.messages import (
    Change,
    Changed,
    Held,
    Hold,
    MapAnswer,
    MapRequest,
    Message,
    Placed,
    Publish,
    Published,
)
from app.cluster.coordinator.run_coordinator import CoordinatorRunner
from app.cluster.shard.held_ranges import HeldRanges
from tests.cluster.memory_records import MemoryRecords

OPTIONS = ClusterOptions(ranges=2, replicas=2)
PUBLISH = Publish("c1", "items", "float32", (10,), 4, 1, 0)


class Carrier:
    """Takes a coordinator's messages; machines hold whatever they are told to at once."""

    def __init__(self, records: MemoryRecords, identity: str) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.runner = CoordinatorRunner(Coordinator(identity, OPTIONS), records, self.send, tick_s=0.01)

    def send(self, to: str, message: Message) -> None:
        self.sent.append((to, message))
        if isinstance(message, Hold):
            node = to.partition(":")[0]
            answer = Held(node, message.key, message.stamp, "d")
            asyncio.get_running_loop().call_soon(self.runner.receive, to, answer)

    def hear(self) -> None:
        """Inventories of two machines."""
        for node in "ab":
            self.runner.receive(f"{node}:80", HeldRanges(node, f"{node}:80", 1, 1000).inventory())

    async def until(self, kind: type[Message], again: Callable[[], None]) -> Message:
        """The first message of a kind that is sent from now on; `again` is done until it comes."""
        del self.sent[:]
        while True:
            again()
            await asyncio.sleep(0.01)
            for _, message in self.sent:
                if isinstance(message, kind):
                    return message


async def took_over(carrier: Carrier) -> asyncio.Task[None]:
    task = asyncio.create_task(carrier.runner.run())
    await carrier.until(MapAnswer, lambda: carrier.runner.receive("r:80", MapRequest(0)))
    carrier.hear()
    return task


def test_a_version_is_published_and_the_next_coordinator_knows_it() -> None:
    async def run() -> None:
        records = MemoryRecords()
        first = Carrier(records, "one")
        task = await took_over(first)
        placed = await first.until(Placed, lambda: first.runner.receive("r:80", PUBLISH))
        assert isinstance(placed, Placed)
        assert len(placed.targets) == 4
        published = await first.until(Published, lambda: first.runner.receive("r:80", PUBLISH))
        assert isinstance(published, Published)
        assert published.number == 1
        task.cancel()
        second = Carrier(records, "two")
        task = await took_over(second)
        again = await second.until(Published, lambda: second.runner.receive("r:80", PUBLISH))
        assert isinstance(again, Published)
        assert again.map.tables == published.map.tables
        assert again.map.generation > published.map.generation
        task.cancel()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_a_coordinator_ends_when_another_one_has_taken_over() -> None:
    async def run() -> None:
        records = MemoryRecords()
        first, second = Carrier(records, "one"), Carrier(records, "two")
        older = await took_over(first)
        newer = await took_over(second)
        await older
        assert first.runner.coordinator.stopped
        change = Change("x", "drain", "a", "", second.runner.coordinator.state.generation)
        await second.until(Changed, lambda: second.runner.receive("r:80", change))
        newer.cancel()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_records_that_cannot_be_reached_are_asked_again() -> None:
    class Failing(MemoryRecords):
        failures = 3

        def latest(self) -> bytes | None:
            if self.failures:
                self.failures -= 1
                raise OSError("the disk is away")
            return super().latest()

    async def run() -> None:
        carrier = Carrier(Failing(), "one")
        task = await took_over(carrier)
        task.cancel()

    asyncio.run(asyncio.wait_for(run(), 30))
