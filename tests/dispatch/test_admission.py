"""Who is let in before anything is done for them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from app.dispatch.admission import FEW, Admission
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.memory.budget import SMALL, Budget, MemoryReservation


def test_a_body_that_can_never_fit_the_memory_is_refused_before_it_is_read() -> None:
    admission = Admission(Budget(4 * SMALL), RequestThreadPool(1, 1), 10)
    with pytest.raises(GatherError, match="payload_too_large") as refused:
        admission.admit(5 * SMALL)
    assert refused.value.facts == {"limit": "memory_budget", "maximum": 4 * SMALL}


def test_a_body_that_does_not_fit_the_memory_now_is_refused_before_it_is_read() -> None:
    budget = Budget(4 * SMALL)
    admission = Admission(budget, RequestThreadPool(1, 1), 10)
    admission.admit(3 * SMALL)
    reservation = MemoryReservation(budget)
    reservation.charge(2 * SMALL)
    with pytest.raises(GatherError, match="overloaded") as refused:
        admission.admit(3 * SMALL)
    assert refused.value.retry_after == 1
    assert refused.value.facts["limit"] == "memory_budget"
    admission.admit(SMALL)  # small ones have a lane of their own
    reservation.release()
    admission.admit(3 * SMALL)


def test_large_bodies_are_refused_while_the_queue_is_full_and_small_ones_read() -> None:
    async def main() -> None:
        pool = RequestThreadPool(1, 0)
        admission = Admission(Budget(4 * SMALL), pool, 10)
        go = threading.Event()
        running = asyncio.ensure_future(pool.run(lambda: go.wait(10)))
        await asyncio.sleep(0)
        admission.admit(FEW)
        for size in (FEW + 1, None):
            with pytest.raises(GatherError, match="overloaded") as refused:
                admission.admit(size)
            assert refused.value.facts["limit"] == "queue"
        go.set()
        assert await running
        admission.admit(None)
        pool.close()

    asyncio.run(main())
