"""Large bodies take turns, and those that bring nothing hold up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from app.dispatch.concurrent_body_reads import ACTIVE_BYTES, GRACE_S, TICK_S, BodyReadLimit
from app.dispatch.request_thread_pool import ClientGone
from app.errors import GatherError
from app.memory.budget import Budget, MemoryReservation
from tests.dispatch.coroutine_tests import in_a_loop

MIB = 1 << 20
BUDGET = 64 * MIB


@dataclass(eq=False)
class Body:
    received: int = 0
    gone: bool = False
    on_disconnect: Callable[[], None] | None = None
    in_socket: int = ACTIVE_BYTES
    asked: bool = False

    def ask_for_it(self) -> None:
        self.asked = True

    def unread(self) -> int:
        return self.in_socket

    def client_has_gone(self) -> bool:
        return self.gone


async def let_tasks_run() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@in_a_loop
async def test_a_body_waits_for_another_to_be_read_and_they_come_in_order() -> None:
    body_reads = BodyReadLimit(Budget(BUDGET), 1)
    bodies = [Body() for _ in range(3)]
    entered: list[int] = []

    async def read(number: int) -> None:
        await body_reads.acquire(bodies[number], None)
        entered.append(number)

    reading = [asyncio.ensure_future(read(number)) for number in range(3)]
    await let_tasks_run()
    assert entered == [0]
    assert not body_reads.full(3, None)
    assert body_reads.full(2, None)
    for number in range(3):
        body_reads.release(bodies[number])
        await let_tasks_run()
        assert entered == [0, 1, 2][: number + 2]
    await asyncio.gather(*reading)
    assert not body_reads.full(1, None)


@in_a_loop
async def test_bodies_that_bring_little_hold_up_nobody_and_brisk_ones_do() -> None:
    body_reads = BodyReadLimit(Budget(BUDGET), 2)
    brisk, idle, third, fourth = Body(), Body(), Body(), Body()
    await body_reads.acquire(brisk, None)
    await body_reads.acquire(idle, None)
    waiting = [asyncio.ensure_future(body_reads.acquire(body, None)) for body in (third, fourth)]

    async def bring(*bodies: Body) -> None:
        for body in bodies:
            body.received += 100 * ACTIVE_BYTES
        await asyncio.sleep(TICK_S)

    async with asyncio.timeout(60):
        while not waiting[0].done():
            await bring(brisk, third)
        for _ in range(10):
            await bring(brisk, third)
        assert not waiting[1].done()  # two of two places are taken
        while not waiting[1].done():
            await bring(brisk)


@in_a_loop
async def test_a_body_waits_no_longer_than_it_may_and_leaves_no_trace() -> None:
    body_reads = BodyReadLimit(Budget(BUDGET), 1, queue_timeout=0.05)
    brisk = Body()
    await body_reads.acquire(brisk, None)
    waiting = asyncio.ensure_future(body_reads.acquire(Body(), None))
    while not waiting.done():
        brisk.received += 10 * ACTIVE_BYTES
        await asyncio.sleep(TICK_S / 4)
    with pytest.raises(GatherError, match="overloaded") as refused:
        await waiting
    assert refused.value.facts == {"limit": "queue_timeout"}
    assert not body_reads.waiting
    body_reads.release(brisk)
    await body_reads.acquire(Body(), None)


@in_a_loop
async def test_a_request_that_is_cut_off_while_it_waits_takes_no_turn() -> None:
    body_reads = BodyReadLimit(Budget(BUDGET), 1)
    first, last = Body(), Body()
    await body_reads.acquire(first, None)
    cut, waiting = (asyncio.ensure_future(body_reads.acquire(body, None)) for body in (Body(), last))
    await let_tasks_run()
    cut.cancel()
    await let_tasks_run()
    body_reads.release(first)
    await waiting
    body_reads.release(last)
    body_reads.release(last)
    assert not body_reads.waiting


@in_a_loop
async def test_a_body_whose_client_goes_while_it_waits_gives_up_its_place_at_once() -> None:
    body_reads = BodyReadLimit(Budget(BUDGET), 1)
    first, second, third = Body(), Body(), Body()
    await body_reads.acquire(first, None)
    waiting = [asyncio.ensure_future(body_reads.acquire(body, None)) for body in (second, third)]
    await let_tasks_run()
    assert body_reads.full(2, None)
    assert second.on_disconnect is not None
    second.on_disconnect()
    await let_tasks_run()
    assert isinstance(waiting[0].exception(), ClientGone)
    assert not body_reads.full(2, None)
    body_reads.release(first)
    await waiting[1]
    assert second.on_disconnect is None
    assert third.on_disconnect is None


async def begin(
    body_reads: BodyReadLimit, size: int | None, in_socket: int = ACTIVE_BYTES
) -> tuple[Body, asyncio.Future[None]]:
    """A body of `size` bytes, and the future of its turn."""
    body = Body(in_socket=in_socket)
    turn = asyncio.ensure_future(body_reads.acquire(body, size))
    await let_tasks_run()
    return body, turn


def finish(body_reads: BodyReadLimit, budget: Budget, body: Body, size: int) -> MemoryReservation:
    """`body` has been read: its request, which holds `size` bytes."""
    reservation = MemoryReservation(budget)
    reservation.charge(size)
    body_reads.expect_answer(reservation, size)
    body_reads.release(body)
    return reservation


@in_a_loop
async def test_a_body_is_read_once_it_and_an_answer_as_long_have_room_and_a_small_one_need_not_wait_for_that() -> None:
    budget = Budget(BUDGET)
    body_reads = BodyReadLimit(budget)
    requests = []
    for _ in range(4):
        body, turn = await begin(body_reads, 8 * MIB)
        assert turn.done()
        requests.append(finish(body_reads, budget, body, 8 * MIB))
    _, large = await begin(body_reads, 8 * MIB)
    _, unknown = await begin(body_reads, None)
    _, small = await begin(body_reads, MIB // 4)
    await asyncio.wait_for(small, 10)
    assert not unknown.done()  # behind the large one
    assert not large.done()  # half of the budget is held, the other half is for the answers
    requests[0].charge(2 * MIB)  # a short answer
    await asyncio.sleep(3 * TICK_S)
    assert not large.done()
    requests[0].release()
    await asyncio.wait_for(large, 10)
    await asyncio.wait_for(unknown, 10)
    assert budget.used == 24 * MIB


@in_a_loop
async def test_a_body_of_more_than_half_of_the_budget_is_read_while_no_other_request_is_unanswered() -> None:
    budget = Budget(BUDGET)
    body_reads = BodyReadLimit(budget)
    first, turn = await begin(body_reads, 40 * MIB)
    assert turn.done()
    _, second = await begin(body_reads, 40 * MIB)
    for _ in range(5):
        first.received += 2 * ACTIVE_BYTES
        await asyncio.sleep(TICK_S)
    _, third = await begin(body_reads, 2 * MIB)  # behind it, so that it gets its turn
    assert not second.done()
    request = finish(body_reads, budget, first, 40 * MIB)
    await asyncio.sleep(3 * TICK_S)
    assert not second.done()
    assert not third.done()
    request.release()
    await asyncio.wait_for(second, 10)
    await asyncio.wait_for(third, 10)
    # An answer that a client does not take holds up nobody whose body has room.
    stuck = MemoryReservation(budget)
    stuck.charge(20 * MIB)
    _, turn = await begin(BodyReadLimit(budget), 40 * MIB)
    assert turn.done()
    body, turn = await begin(BodyReadLimit(budget, queue_timeout=0.5), 30 * MIB)
    assert not turn.done()  # with an answer as long it may have room in a moment
    assert body.asked
    await asyncio.wait_for(turn, 10)


@in_a_loop
async def test_those_who_claim_to_send_take_no_place() -> None:
    body_reads = BodyReadLimit(Budget(BUDGET), 1)
    brisk, _ = await begin(body_reads, 2 * MIB)
    claims = [await begin(body_reads, 60 * MIB, 0) for _ in range(20)]
    _, other = await begin(body_reads, 2 * MIB)
    for _ in range(int(2 * GRACE_S / TICK_S)):
        brisk.received += 2 * ACTIVE_BYTES
        await asyncio.sleep(TICK_S)
    assert not other.done()
    body_reads.release(brisk)
    await let_tasks_run()
    assert other.done()
    assert all(turn.done() for _, turn in claims)


@in_a_loop
async def test_no_room_is_kept_for_an_answer_that_is_being_sent() -> None:
    budget = Budget(BUDGET)
    body_reads = BodyReadLimit(budget)
    body, _ = await begin(body_reads, 30 * MIB)
    request = finish(body_reads, budget, body, 30 * MIB)
    request.charge(2 * MIB)
    _, other = await begin(body_reads, 4 * MIB)
    assert not other.done()
    body_reads.begin_answer(request)
    await asyncio.wait_for(other, 10)


@in_a_loop
async def test_small_bodies_are_not_refused_because_large_ones_wait_for_room() -> None:
    budget = Budget(BUDGET)
    body_reads = BodyReadLimit(budget)
    body, _ = await begin(body_reads, 32 * MIB)
    finish(body_reads, budget, body, 32 * MIB)
    await begin(body_reads, 2 * MIB)
    for size in (2 * MIB, None):
        assert body_reads.full(0, size)
        assert not body_reads.full(2, size)
    assert not body_reads.full(0, MIB)
    for number in range(9):
        assert not body_reads.full(0, MIB)
        _, turn = await begin(body_reads, MIB)
        assert turn.done() == (number < 8)
    assert body_reads.full(0, MIB)
    assert not body_reads.full(2, MIB)
