"""Who is let in before anything is done for them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from app.dispatch.admission_control import SMALL_BODY_BYTES, Admission
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.memory.budget import SMALL_REQUEST_BYTES, Budget, MemoryReservation


def test_a_body_that_can_never_fit_the_memory_is_refused_before_it_is_read() -> None:
    admission = Admission(Budget(4 * SMALL_REQUEST_BYTES), RequestThreadPool(1, 1), 10)
    with pytest.raises(GatherError, match="payload_too_large") as refused:
        admission.admit(5 * SMALL_REQUEST_BYTES)
    assert refused.value.facts == {"limit": "memory_budget", "maximum": 4 * SMALL_REQUEST_BYTES}


def test_a_body_that_does_not_fit_the_memory_now_is_refused_before_it_is_read() -> None:
    budget = Budget(4 * SMALL_REQUEST_BYTES)
    admission = Admission(budget, RequestThreadPool(1, 1), 10)
    admission.admit(3 * SMALL_REQUEST_BYTES)
    reservation = MemoryReservation(budget)
    reservation.charge(2 * SMALL_REQUEST_BYTES)
    with pytest.raises(GatherError, match="overloaded") as refused:
        admission.admit(3 * SMALL_REQUEST_BYTES)
    assert refused.value.retry_after == 1
    assert refused.value.facts["limit"] == "memory_budget"
    admission.admit(SMALL_REQUEST_BYTES)  # small ones have a budget of their own
    reservation.release()
    admission.admit(3 * SMALL_REQUEST_BYTES)


def test_large_bodies_are_refused_while_the_queue_is_full_and_small_ones_read() -> None:
    async def main() -> None:
        pool = RequestThreadPool(1, 0)
        admission = Admission(Budget(4 * SMALL_REQUEST_BYTES), pool, 10)
        go = threading.Event()
        running = asyncio.ensure_future(pool.run(lambda: go.wait(60)))
        await asyncio.sleep(0)
        admission.admit(SMALL_BODY_BYTES)
        for size in (SMALL_BODY_BYTES + 1, None):
            with pytest.raises(GatherError, match="overloaded") as refused:
                admission.admit(size)
            assert refused.value.facts["limit"] == "queue"
        go.set()
        assert await running
        admission.admit(None)
        pool.close()

    asyncio.run(main())
