"""One call carries the protocol: messages in, those that wait out."""

from __future__ import annotations

import asyncio

import pytest

from app.cluster.coordinator import message_exchange
from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.message_exchange import MessageExchange
from app.cluster.coordinator.message_json import message_from_json, message_to_json
from app.cluster.coordinator.messages import MapAnswer, MapRequest
from tests.cluster.memory_records import MemoryRecords


def exchange() -> MessageExchange:
    return MessageExchange("one", ClusterOptions(), MemoryRecords(), tick_s=0.01)


def test_an_answer_waits_for_the_next_call() -> None:
    async def run() -> None:
        one = exchange()
        task = asyncio.create_task(one.runner.run())
        found: list[bytes] = []
        while not found:
            found = await one.exchange("r:80", [message_to_json(MapRequest(0)), b"no message"], wait_s=0.05)
        assert isinstance(message_from_json(found[0]), MapAnswer)
        assert await one.exchange("other:80", [], wait_s=0.01) == []
        task.cancel()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_messages_that_nobody_fetches_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_exchange, "FORGOTTEN_AFTER_S", 0.0)

    async def run() -> None:
        one = exchange()
        one._post("nobody:80", MapRequest(1))
        assert await one.exchange("nobody:80", []) == []
        await asyncio.sleep(0.01)
        one._post("nobody:80", MapRequest(1))
        assert await one.exchange("nobody:80", []) == []

    asyncio.run(run())
