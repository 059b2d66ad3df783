"""Uploads whose requests end before they do."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.upload_receiver import PIECE_BYTES, receive
from app.memory.budget import Budget, MemoryReservation


@pytest.mark.parametrize("last", ["take", "end"])
def test_a_request_that_is_cut_off_waits_for_the_thread_that_works_on_its_upload(last: str) -> None:
    """Its files are closed after that: what is opened meanwhile may have the numbers of their descriptors."""
    steps: list[str] = []
    begun, goes_on = Event(), Event()

    def work(step: str) -> None:
        steps.append(f"{step} begins")
        if step == last:
            begun.set()
            goes_on.wait(60)
        steps.append(f"{step} ends")

    receiver: Any = SimpleNamespace(
        take=lambda _: work("take"), end=lambda: work("end"), abandon=lambda: steps.append("abandon")
    )

    async def cut_off() -> None:
        messages: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        context: Any = SimpleNamespace(
            receive=messages.get, content_length=lambda: None, memory=MemoryReservation(Budget(8 * PIECE_BYTES))
        )
        with ThreadPoolExecutor(2) as threads:
            task = asyncio.create_task(receive(context, receiver, threads))
            for more in (True, False):
                messages.put_nowait({"type": "http.request", "body": bytes(PIECE_BYTES), "more_body": more})
            await asyncio.to_thread(begun.wait, 10)
            await asyncio.sleep(0.05)  # it waits for the thread now
            task.cancel()
            await asyncio.wait((task,), timeout=0.2)
            assert not task.done()
            assert steps[-1] == f"{last} begins"
            goes_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(cut_off())
    assert steps[-2:] == [f"{last} ends", "abandon"]
