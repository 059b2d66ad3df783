"""Answers of one turn of the event loop leave together, but none is held back while many others are worked out."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.server import write_batch
from app.server.http_exchange import HttpExchange
from app.server.write_batch import MAX_BATCH_BYTES, MAX_DELAY_S


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Transport:
    """Notes when it was written to."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.written: list[float] = []

    def writelines(self, pieces: Any) -> None:
        self.written.append(self.clock.now)

    def is_closing(self) -> bool:
        return False


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(write_batch, "perf_counter", found, raising=False)
    return found


def respond(transport: Any, size: int) -> None:
    """What a request comes to whose answer has that many bytes."""
    connection: Any = SimpleNamespace(
        transport=transport,
        flow=None,
        server_state=SimpleNamespace(default_headers=[]),
        on_response_complete=lambda: None,
    )
    made = HttpExchange(connection, {}, keep_alive=True)
    made.respond(200, b"", (bytes(size),), size)


def one_turn(clock: Clock, count: int, seconds: float, size: int) -> tuple[list[float], list[float]]:
    """`count` requests in one turn, each of which takes so many seconds: when each was answered, and when written."""
    ready: list[float] = []
    transports = [Transport(clock) for _ in range(count)]

    def turn() -> None:
        for transport in transports:
            clock.now += seconds
            ready.append(clock.now)
            respond(transport, size)

    async def main() -> None:
        asyncio.get_running_loop().call_soon(turn)
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    return ready, [at for transport in transports for at in transport.written]


def test_answers_of_a_short_turn_leave_together(clock: Clock) -> None:
    _, written = one_turn(clock, 10, MAX_DELAY_S / 20, 100)
    assert written == [clock.now] * 10


@pytest.mark.parametrize("seconds", [MAX_DELAY_S / 3, 10 * MAX_DELAY_S])
def test_no_answer_is_held_back_for_longer_than_one_other_takes_beyond_the_bound(clock: Clock, seconds: float) -> None:
    ready, written = one_turn(clock, 100, seconds, 100)
    assert len(written) == 100
    assert max(at - since for since, at in zip(ready, written, strict=True)) <= MAX_DELAY_S + 1.01 * seconds


def test_no_more_bytes_are_held_back_than_the_bound_and_one_answer(clock: Clock) -> None:
    size = MAX_BATCH_BYTES // 8
    _, written = one_turn(clock, 100, 1e-9, size)
    together = max(map(written.count, written))
    assert 8 <= together <= 9


def test_answers_that_follow_early_ones_in_a_turn_leave_at_its_end(clock: Clock) -> None:
    _, written = one_turn(clock, 5, MAX_DELAY_S / 2.5, 10)
    assert len(written) == 5
    assert written == sorted(written)
