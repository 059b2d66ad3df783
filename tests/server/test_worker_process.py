"""A worker as its parent sees it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.server.serve import Server
from app.server.worker_process import WorkerServer
from app.telemetry.shared_counters import SlotHeader, unshared_counters


def test_a_worker_whose_requests_finish_does_not_look_as_if_it_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent kills one that shows no life, and requests may have longer than that to finish."""
    seen: list[int] = []

    async def finish_requests(server: Any, sockets: Any = None) -> None:
        while len(seen) < 3:
            await asyncio.sleep(0.15)
            seen.append(server._counters.header[SlotHeader.HEARTBEAT])

    monkeypatch.setattr(Server, "shutdown", finish_requests)
    server = WorkerServer.__new__(WorkerServer)
    server._counters = unshared_counters()
    server._starting = server.acceptor = None
    monkeypatch.setattr(server, "stop_listening", lambda: None)

    async def stop() -> None:
        server._beating = asyncio.create_task(server._show_heartbeat())
        await server.shutdown()

    asyncio.run(stop())
    assert seen == sorted(set(seen)), "it goes up each time"
    assert seen[0] > 0
