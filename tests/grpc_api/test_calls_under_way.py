"""Places for calls over gRPC, and calls that wait for one, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from app.grpc_api.calls_under_way import CallsUnderWay
from app.grpc_api.rpc_table import RPCS

INFER = next(rpc for rpc in RPCS.values() if rpc.method == "ModelInfer")
Call = Callable[[int], Coroutine[Any, Any, None]]


def run(most: int, course: Callable[[Call, list[object], asyncio.Event], Coroutine[Any, Any, None]]) -> list[object]:
    """What happened to calls, of which `most` may be under way, in the course of one event loop."""
    happened: list[object] = []

    async def main() -> None:
        places, over = CallsUnderWay(most, 1, 1 << 24), asyncio.Event()

        async def call(number: int) -> None:
            task = places.begin(INFER)
            try:
                await places.take_place(task)
                happened.append(number)
                await over.wait()
            finally:
                places.end(task)

        await course(call, happened, over)
        assert not places.places.taken
        assert not places.places.waiting

    asyncio.run(main())
    return happened


def test_calls_that_wait_have_places_in_the_order_in_which_they_came() -> None:
    async def course(call: Call, happened: list[object], over: asyncio.Event) -> None:
        calls = [asyncio.ensure_future(call(number)) for number in range(6)]
        await asyncio.sleep(0.01)
        assert happened == [0, 1]
        calls[3].cancel()  # it waits
        calls[1].cancel()  # it has a place
        await asyncio.sleep(0.01)
        assert happened == [0, 1, 2]
        over.set()
        await asyncio.gather(*calls, return_exceptions=True)

    assert run(2, course) == [0, 1, 2, 4, 5]


def test_a_call_that_goes_in_the_moment_in_which_it_has_a_place_leaves_it_to_the_next() -> None:
    async def course(call: Call, happened: list[object], over: asyncio.Event) -> None:
        calls = [asyncio.ensure_future(call(number)) for number in range(3)]
        await asyncio.sleep(0.01)
        calls[0].cancel()
        calls[1].cancel()
        await asyncio.sleep(0.01)
        over.set()
        await asyncio.gather(*calls, return_exceptions=True)

    assert run(1, course) == [0, 2]
