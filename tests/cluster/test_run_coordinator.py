"""A coordinator on a real clock: it takes over, goes on after a crash, and yields."""

from __future__ import annotations

import asyncio

import pytest

from app.cluster.coordinator import run_coordinator
from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.message_json import message_from_json, message_to_json
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
    """Carries a coordinator's messages; machines hold whatever they are told to."""

    def __init__(self, records: MemoryRecords, identity: str) -> None:
        self.runner = CoordinatorRunner(identity, OPTIONS, records, tick_s=0.01)

    async def ask(self, sender: str, *messages: Message) -> list[Message]:
        found = await self.runner.exchange(sender, [message_to_json(message) for message in messages])
        return [message_from_json(text) for text in found]

    async def hear(self) -> None:
        """Inventories of two machines."""
        for node in "ab":
            await self.ask(f"{node}:80", HeldRanges(node, f"{node}:80", 1, 1000).inventory())

    async def until(self, kind: type[Message], asked: Message) -> Message:
        """The first message of a kind that a router gets; it asks until it comes."""
        await self.ask("r:80")
        while True:
            for message in await self.ask("r:80", asked):
                if isinstance(message, kind):
                    return message
            await asyncio.sleep(0.01)
            for node in "ab":
                for order in await self.ask(f"{node}:80"):
                    if isinstance(order, Hold):
                        await self.ask(f"{node}:80", Held(node, order.key, order.stamp, "d"))


async def took_over(carrier: Carrier) -> asyncio.Task[None]:
    task = asyncio.create_task(carrier.runner.run())
    await carrier.until(MapAnswer, MapRequest(0))
    await carrier.hear()
    return task


def test_a_version_is_published_and_the_next_coordinator_knows_it() -> None:
    async def run() -> None:
        records = MemoryRecords()
        first = Carrier(records, "one")
        task = await took_over(first)
        placed = await first.until(Placed, PUBLISH)
        assert isinstance(placed, Placed)
        assert len(placed.targets) == 4
        published = await first.until(Published, PUBLISH)
        assert isinstance(published, Published)
        assert published.number == 1
        task.cancel()
        second = Carrier(records, "two")
        task = await took_over(second)
        again = await second.until(Published, PUBLISH)
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
        await second.until(Changed, change)
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


def exchange() -> CoordinatorRunner:
    return CoordinatorRunner("one", ClusterOptions(), MemoryRecords(), tick_s=0.01)


def test_an_answer_waits_for_the_next_call() -> None:
    async def run() -> None:
        one = exchange()
        task = asyncio.create_task(one.run())
        found: list[bytes] = []
        while not found:
            found = await one.exchange("r:80", [message_to_json(MapRequest(0)), b"no message"], wait_s=0.05)
        assert isinstance(message_from_json(found[0]), MapAnswer)
        assert await one.exchange("other:80", [], wait_s=0.01) == []
        task.cancel()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_messages_that_nobody_fetches_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_coordinator, "FORGOTTEN_AFTER_S", 0.0)

    async def run() -> None:
        one = exchange()
        one._post("nobody:80", MapRequest(1))
        assert await one.exchange("nobody:80", []) == []
        await asyncio.sleep(0.01)
        one._post("nobody:80", MapRequest(1))
        assert await one.exchange("nobody:80", []) == []

    asyncio.run(run())
