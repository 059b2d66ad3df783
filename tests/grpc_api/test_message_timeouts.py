"""Calls whose message does not come are ended after GATHERND_DEADLINE, each after its own time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Event
from time import monotonic, sleep
from typing import Any

import grpc

from app.grpc_api.message_timeouts import MessageTimeouts
from tests.grpc_api.conftest import StartGrpc
from tests.grpc_api.messages import Channel, example, judged

INFER = "/inference.GRPCInferenceService/ModelInfer"


def test_a_call_without_its_message_is_ended_in_time(start_grpc: StartGrpc) -> None:
    with start_grpc("--deadline", "1") as server, Channel(server.address) as channel:
        end = Event()

        def nothing() -> Iterator[bytes]:
            end.wait(20)
            yield from ()

        silent: Any = channel.channel.stream_unary(INFER)
        begun, calls = [], []
        for _ in range(3):
            begun.append(monotonic())
            calls.append(silent.future(nothing()))
            channel.call("ModelInfer", example())
            sleep(0.3)
        for start, call in zip(begun, calls, strict=True):
            error = call.exception(timeout=60)
            took = monotonic() - start
            assert isinstance(error, grpc.RpcError)
            status, problem = judged(error)
            assert (status, problem["code"]) == ("DEADLINE_EXCEEDED", "request_timeout")
            assert 0.9 < took < 60
        end.set()
        channel.call("ModelInfer", example())


def test_only_those_that_wait_too_long_are_cancelled() -> None:
    async def main() -> list[str]:
        timeouts = MessageTimeouts(0.2)

        async def wait(seconds: float) -> str:
            task = asyncio.current_task()
            assert task is not None
            timeouts.begin(task)
            try:
                await asyncio.sleep(seconds)
            except asyncio.CancelledError:
                return "too late" if timeouts.ended(task) else "cancelled"
            finally:
                timeouts.end(task)
            return "came"

        waiting = []
        for seconds in (0.0, 0.5, 0.1, 0.5, 0.5, 0.15):
            waiting.append(asyncio.ensure_future(wait(seconds)))
            await asyncio.sleep(0.05)
        waiting[4].cancel()
        return await asyncio.gather(*waiting)

    assert asyncio.run(main()) == ["came", "too late", "came", "too late", "cancelled", "came"]


def test_a_call_that_is_too_late_and_cancelled_is_cancelled() -> None:
    async def main() -> bool:
        timeouts = MessageTimeouts(0.05)

        async def wait() -> bool:
            task = asyncio.current_task()
            assert task is not None
            timeouts.begin(task)
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                return timeouts.ended(task)
            return True

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        timeouts._waiting[task] -= 1  # as if it had begun a second ago
        timeouts._look()
        task.cancel()
        return await task

    assert asyncio.run(main()) is False
