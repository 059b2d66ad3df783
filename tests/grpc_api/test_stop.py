"""The stop of the gRPC server, in process: calls that have come are answered, and it waits for little else."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio

from app.grpc_from_settings import grpc_listener
from app.main import create_app
from app.settings import Settings
from tests.free_port import free_port

LIVE = "/inference.GRPCInferenceService/ServerLive"
WATCH = "/grpc.health.v1.Health/Watch"
BURST, COME = 32, 16
GRACE = 600.0
"""Seconds, which a stop would take whole if it waited for what does not end."""
_T = TypeVar("_T")


class Server:
    """A server that listens, and a channel to it."""

    def __init__(self, folder: Path) -> None:
        self._app = create_app(Settings(store_dir=folder))
        self._address = f"127.0.0.1:{free_port()}"
        self.listener = grpc_listener(self._app, [self._address])
        self.channel: Any = None

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        await self.listener.start(None)
        try:
            async with grpc.aio.insecure_channel(self._address) as self.channel:
                return await work
        finally:
            await self.listener.stop(0)
            self._app.release()

    async def ask(self) -> bytes | str:
        """The answer, or the status instead."""
        call: Any = self.channel.unary_unary(LIVE)
        try:
            answer: bytes = await call(b"", timeout=60)
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return answer


def test_calls_that_have_come_before_a_stop_are_answered(tmp_path: Path) -> None:
    server = Server(tmp_path)

    async def burst() -> list[bytes | str]:
        alive = await server.ask()
        assert alive == b"\x08\x01"
        asked = [asyncio.create_task(server.ask()) for _ in range(BURST)]
        await asked[COME - 1]  # those before it have come on the same connection, and perhaps later ones
        await server.listener.stop(60)
        return await asyncio.gather(*asked)

    answers = asyncio.run(server.run(burst()))
    assert answers[:COME] == [b"\x08\x01"] * COME
    assert set(answers[COME:]) <= {b"\x08\x01", "CANCELLED", "UNAVAILABLE"}


def test_a_stop_waits_neither_for_watches_nor_for_an_end_of_the_load(tmp_path: Path) -> None:
    server = Server(tmp_path)

    async def load() -> set[bytes | str]:
        watch: Any = server.channel.unary_stream(WATCH)(b"")
        assert await watch.read() == b"\x08\x02"
        ends, under_way = False, asyncio.Event()
        seen: set[bytes | str] = set()

        async def ask_on() -> None:
            while not ends:
                seen.add(await server.ask())
                under_way.set()

        callers = [asyncio.create_task(ask_on()) for _ in range(8)]
        await under_way.wait()
        await asyncio.wait_for(server.listener.stop(GRACE), GRACE / 10)
        ends = True
        await asyncio.gather(*callers)
        return seen

    seen = asyncio.run(server.run(load()))
    assert seen <= {b"\x08\x01", "CANCELLED", "UNAVAILABLE"}
