"""Clients that send much more than they read answers to: memory stays bounded, and others are answered meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.conftest import slow_but_for
from tests.http.conftest import Start
from tests.http.held import metric, until
from tests.http.raw import TINY, Wire, ask, request
from tests.http.server import Server

BUDGET = 64 << 20
MOST_GROWTH = 96 << 20
"""The budgets of large requests, small ones and connections together; more than this is held by nobody's leave."""
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = LIVEZ[:-2] + b"Upgrade: h2c\r\nConnection: upgrade\r\n\r\n"
UPLOAD = "PUT /tensors/never HTTP/1.1"
UPLOADS = 40
"""With 4 MiB for each, more than twice the budget."""
CHUNKED = b"POST /gathernd HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
FLOODS: dict[str, tuple[int, bytes]] = {
    "many pipelines": (50, LIVEZ * 12_000),
    "pipelined offers to upgrade": (10, UPGRADE * 5_000),
    "headers without an end": (400, LIVEZ[:-2] + b"a:\r\n" * 15_000),
    "large headers without an end": (400, LIVEZ[:-2] + b"a: " + b"a" * 60_000),
    "chunks of one byte": (5, CHUNKED + b"\r\n" + b"1\r\n \r\n" * 100_000),
    "chunks of one byte that are refused": (5, CHUNKED + b"Content-Type: text/x\r\n\r\n" + b"1\r\n \r\n" * 100_000),
    "empty lines": (5, b"\r\n" * 10_000),
}
FEW = ("many pipelines", "headers without an end", "chunks of one byte", "empty lines")
"""Those of `make test`."""


@pytest.fixture(scope="module")
def bounded(start: Start) -> Iterator[Server]:
    with start("--memory-budget", str(BUDGET)) as server:
        yield server


def flood(connection: socket.socket, data: bytes) -> None:
    """Send `data` and take no answers, for as long as the server takes it."""
    connection.settimeout(5)
    with suppress(OSError):
        connection.sendall(data)


def read_all(connection: socket.socket) -> None:
    """Read what comes until the server closes, or nothing comes any more."""
    connection.settimeout(5)
    with suppress(OSError):
        while connection.recv(1 << 20):
            pass


@pytest.mark.parametrize("name", slow_but_for(FEW, FLOODS))
def test_a_flood_takes_no_memory_beyond_the_budget_and_others_are_answered(bounded: Server, name: str) -> None:
    count, data = FLOODS[name]
    client = bounded.shared_client()
    before = bounded.forget_peak()
    with ExitStack() as stack:
        connections = [stack.enter_context(bounded.connect()) for _ in range(count)]
        threads = [Thread(target=flood, args=(connection, data)) for connection in connections]
        if name.startswith("chunks"):
            threads += [Thread(target=read_all, args=(connection,)) for connection in connections]
        for thread in threads:
            thread.start()
        with Wire(bounded) as wire:
            for _ in range(20):
                wire.send(request(TINY))
                assert wire.read().json()["output"]["values"] == [8]
        assert client.get("/livez").status_code == 200
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
    assert bounded.peak() - before < MOST_GROWTH
    until(lambda: not metric(bounded, "gathernd_memory_used_bytes"))


def test_what_waits_behind_a_request_is_charged(start: Start) -> None:
    """A client that reads nothing: its answer waits, and the requests behind it."""
    with start("--memory-budget", str(BUDGET)) as server, Wire(server) as wire:
        Thread(target=flood, args=(wire.socket, LIVEZ * 400_000), daemon=True).start()
        until(lambda: metric(server, "gathernd_memory_used_bytes") > 0)


def test_uploads_that_are_announced_and_do_not_come_hold_no_memory(start: Start, tmp_path: Path) -> None:
    rows = ",".join("1" * (1 << 20))
    data = f'{{"dtype":"int8","shape":[{1 << 20}],"values":[{rows}]}}'
    large = f'{{"data":{data},"indices":{{"dtype":"int64","shape":[1,1],"values":[1]}}}}'.encode()
    flags = "--memory-budget", str(BUDGET), "--store-dir", str(tmp_path), "--body-timeout", "120"
    begun = request(b"a", "Content-Type: application/x-npy", "Content-Length: 8000000", line=UPLOAD, length=False)
    with ExitStack() as stack:
        server = stack.enter_context(start(*flags))
        for _ in range(UPLOADS):
            stack.enter_context(Wire(server)).send(begun)
        until(lambda: metric(server, "gathernd_requests_in_flight") >= UPLOADS)
        with Wire(server) as wire:
            wire.send(request(large))
            assert wire.read().json()["output"]["values"] == [1]


def test_idle_requests_that_claim_a_gigabyte_each_hold_nothing_and_nobody_up(start: Start) -> None:
    kind, rows = "Content-Type: application/x-safetensors", np.arange(1024)[::-1].copy()
    data = np.random.default_rng(5).integers(0, 256, (len(rows), 4096), dtype=np.uint8)
    large = request(save({"data": data, "indices": rows[:, None]}), kind)
    with start("--memory-budget", str((1 << 30) + (1 << 20)), "--threads", "2") as server, ExitStack() as idle:
        assert ask(server, large).status == 200
        before = server.forget_peak()
        for _ in range(12):
            wire = idle.enter_context(Wire(server))
            wire.send(request(bytes(100), f"Content-Length: {1 << 30}", kind, length=False))
        until(lambda: metric(server, "gathernd_requests_in_flight") >= 13)  # and the one that asks
        assert metric(server, "gathernd_memory_used_bytes") < 1 << 20
        for _ in range(5):
            assert load(ask(server, large).body)["output"].tobytes() == data[rows].tobytes()
        assert server.peak() - before < 40 << 20
        assert server.shared_client().post("/gathernd", content=TINY).status_code == 200
