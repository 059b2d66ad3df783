"""Resident tensors under load, with two workers: replaced, scattered, killed, and never a wrong row."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.store.processes.store_locks import stripe
from tests.conftest import SOAK
from tests.http.conftest import Start
from tests.http.held import metric, until
from tests.http.raw import Wire, request
from tests.http.server import TWO_WORKERS, Server
from tests.http.tensors import error, look_up, put_raw, save, scatter_body

pytestmark = pytest.mark.long

NEW_CONNECTIONS = httpx.Limits(max_keepalive_connections=0)
BINARY = {"content-type": "application/x-safetensors"}


@contextmanager
def threads(*works: Callable[[], None]) -> Iterator[threading.Event]:
    """Run `works` until the block ends; what one raises is raised here."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as failure:  # noqa: BLE001  (raised below)
            failures.append(failure)
            stop.set()

    running = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in running:
        thread.start()
    try:
        yield stop
    finally:
        stop.set()
        for thread in running:
            thread.join()
    if failures:
        raise failures[0]


def space(folder: Path) -> int:
    free = os.statvfs(folder)
    held = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    assert free.f_bavail > 0
    return held


def test_an_upload_is_served_by_every_worker_once_it_is_answered_and_leaves_nothing_of_the_last(
    start: Start, tmp_path: Path
) -> None:
    """tests/http/test_lookup_contents.py has what readers see meanwhile."""
    folder = tmp_path / "kept"
    with start(*TWO_WORKERS, "--store-dir", str(folder)) as server, server.client() as client:
        taken = 0
        for number in range(101 if SOAK else 6):
            assert put_raw(client, "table", np.full((5000, 64), number, np.float32)).is_success
            taken = taken or space(folder / "tensors")
            with server.client(limits=NEW_CONNECTIONS) as fresh:
                for _ in range(6):  # more questions than there are workers
                    assert look_up(fresh, "table", [number]).json()["output"]["values"] == [number] * 64
        assert list((folder / "incoming").iterdir()) == []
        until(lambda: space(folder / "tensors") == taken and not mapped_and_removed(folder))


def mapped_and_removed(folder: Path) -> list[str]:
    """Removed files of the store that some process still has, and so their space."""
    found = []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            found += [line for line in maps.read_text().splitlines() if str(folder) in line and "(deleted)" in line]
        except OSError:
            continue
    return found


def test_a_large_download_is_of_one_content_whatever_scatters_come_meanwhile(server: Server) -> None:
    client = server.shared_client()
    etag = put_raw(client, "large", np.zeros(64 * 2**20, np.uint8)).headers["etag"]
    with Wire(server) as wire:
        wire.send(request(b"", line="GET /tensors/large/content HTTP/1.1"))
        received = wire.socket.recv(4096)
        for place in (64 * 2**20 - 1, 40 * 2**20, 0):
            body = {"indices": np.array([[place]]), "updates": np.ones(1, np.uint8)}
            assert client.post("/tensors/large/scatter", content=save(**body), headers=BINARY).status_code == 200
        head, _, start = received.partition(b"\r\n\r\n")
        size, ones = len(start), start.count(1)
        while size < 64 * 2**20:
            piece = wire.socket.recv(1 << 20)
            assert piece, "the download was cut"
            size += len(piece)
            ones += piece.count(1)
    assert f"etag: {etag}".encode() in head.lower()
    assert (size, ones) == (64 * 2**20, 0)
    whole = client.get("/tensors/large/content")
    assert whole.content.count(1) == 3
    assert whole.headers["etag"].endswith('-3"')
    client.delete("/tensors/large")


def test_a_download_that_cannot_go_on_is_cut_and_counted_as_ours(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with start("--store-dir", str(folder)) as server, server.client() as client:
        put_raw(client, "large", np.zeros(64 * 2**20, np.uint8))
        (path,) = (folder / "tensors").iterdir()
        with Wire(server) as wire:
            wire.send(request(b"", line="GET /tensors/large/content HTTP/1.1"))
            size = len(wire.socket.recv(4096))
            os.truncate(path, 16 * 2**20)
            while piece := wire.socket.recv(1 << 20):
                size += len(piece)
        assert size < 64 * 2**20
        errors = 'gathernd_errors_total{code="%s"}'
        while (ours := metric(server, errors % "tensor_damaged")) == 0:
            time.sleep(0.01)  # the answer ends before it is counted
        assert (ours, metric(server, errors % "client_gone")) == (1, 0)
        assert "an answer was cut" in server.log_text()


@pytest.mark.slow
def test_a_file_that_is_cut_while_it_is_read_costs_at_most_a_worker(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with start(*TWO_WORKERS, "--store-dir", str(folder)) as server, server.client() as client:
        put_raw(client, "whole", np.arange(100))
        (whole,) = (folder / "tensors").iterdir()
        table = np.zeros((4000, 1024), np.int32)
        body = save(indices=np.random.default_rng(0).integers(0, 4000, (3000, 1)))
        answered: list[str] = []
        dropped: list[Exception] = []

        def look() -> None:
            with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as own:
                try:
                    answer = own.post("/gathernd?tensor=cut", content=body, headers=BINARY)
                except httpx.TransportError as error:
                    dropped.append(error)
                    return
            code = "" if answer.status_code == 200 else answer.json()["code"]
            assert code in ("", "tensor_damaged", "tensor_not_found", "overloaded", "not_ready"), answer.text
            answered.append(code)

        for turn in range(4):
            assert until_answered(client, lambda: put_raw(client, "cut", table)).status_code < 300
            (path,) = {*(folder / "tensors").iterdir()} - {whole}
            with threads(look, look) as stop:
                while answered.count("") <= turn and not stop.is_set():
                    time.sleep(0.001)
                os.truncate(path, 4096)
                time.sleep(0.1)
            for _ in range(4):
                answer = until_answered(client, lambda: look_up(client, "whole", [7]))
                assert answer.json()["output"]["values"] == [7]
            error(until_answered(client, lambda: look_up(client, "cut", [7])), 500, "tensor_damaged")
        assert "tensor_damaged" in answered or dropped


def until_answered(client: httpx.Client, ask: Callable[[], httpx.Response]) -> httpx.Response:
    """The answer of a worker that lives and is ready; the one that had the connection may be gone."""
    until = time.monotonic() + 60  # a new worker may have to wait for a processor
    while time.monotonic() < until:
        with suppress(httpx.TransportError):
            answer = ask()
            if answer.status_code != 503:
                return answer
        time.sleep(0.05)
    raise AssertionError("no worker answers")


def test_a_tensor_whose_disk_stalls_stops_no_other(start: Start, tmp_path: Path) -> None:
    """Scatters, removals, uploads and downloads of one tensor wait in numbers; all is as before for another."""
    folder = tmp_path / "kept"
    with start("--store-dir", str(folder)) as server, server.client() as client, ExitStack() as made:
        put_raw(client, "stalled", np.zeros((3000, 1024), np.float32))
        put_raw(client, "other", np.zeros((3000, 1024), np.float32))
        assert stripe("stalled") != stripe("other")
        body = scatter_body([[0]], np.ones((1, 1024), np.float32), "add")
        waiting: list[Wire] = []
        with (folder / "locks" / f"{stripe('stalled'):02d}").open("a+b") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # as a worker has it whose write does not come back
            for number in range(40):
                wire = made.enter_context(Wire(server))
                waiting.append(wire)
                scattered = request(json.dumps(body).encode(), line="POST /tensors/stalled/scatter HTTP/1.1")
                ways = [
                    scattered, request(b"", line="DELETE /tensors/stalled HTTP/1.1"),
                    request(b"", line="GET /tensors/stalled/content HTTP/1.1"),
                ]  # fmt: skip
                wire.send(ways[number % 3] if number > 30 else scattered)
            with server.client() as other:
                other.timeout = 60
                assert other.get("/tensors/stalled").status_code == 200
                assert len(other.get("/tensors").json()["tensors"]) == 2
                assert look_up(other, "stalled", [7]).status_code == 200
                assert other.post("/tensors/other/scatter", json=body).status_code == 200
                assert len(other.get("/tensors/other/content").content) == 3000 * 4096
                assert put_raw(other, "other", np.zeros(4)).status_code == 200
                assert other.delete("/tensors/other").status_code == 204
        for wire in waiting[:31]:
            assert wire.read().status in (200, 404)
