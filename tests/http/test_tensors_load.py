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
from typing import Any

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

ROWS, WIDTH = 5000, 64
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


def version(number: int) -> Any:
    return np.full((ROWS, WIDTH), number, np.float32)


class Reader:
    """Looks rows up and checks that they are of one version. `found` is which versions the ETags in answers named."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client
        self.found: dict[str, int] = {}
        self.count = 0
        self.seen: set[int] = set()
        self.random = np.random.default_rng(id(self) % 1000)

    def __call__(self) -> None:
        rows = self.random.integers(0, ROWS, 64).tolist()
        answer = look_up(self.client, "table", rows)
        assert answer.status_code == 200, answer.text
        found = answer.json()
        values = set(found["output"]["values"])
        assert len(values) == 1, f"a mixture of {values}"
        number = int(values.pop())
        named = self.found.setdefault(found["data_etag"], number)
        assert named == number, (named, number)
        self.seen.add(number)
        self.count += 1


def resident_kib(server: Server) -> int:
    """Memory of the process and of those that it started; of what several share, to each its part."""
    total = 0
    for one in (server.process.pid, *server.workers()):
        total += int(Path(f"/proc/{one}/smaps_rollup").read_text().split("Pss:")[1].split()[0])
    return total


def space(folder: Path) -> int:
    free = os.statvfs(folder)
    held = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    assert free.f_bavail > 0
    return held


@pytest.mark.timeout(600)
def test_replacing_during_lookups_gives_no_wrong_row(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with start(*TWO_WORKERS, "--store-dir", str(folder)) as server, server.client() as client, ExitStack() as made:
        etags = {put_raw(client, "table", version(0)).json()["etag"]: 0}
        readers = [Reader(made.enter_context(server.client())) for _ in range(2)]
        fresh = made.enter_context(server.client(limits=NEW_CONNECTIONS))
        for _ in range(20):
            readers[0]()
        before, taken = resident_kib(server), space(folder / "tensors")
        with threads(*readers):
            for number in range(1, 101 if SOAK else 6):
                answer = put_raw(client, "table", version(number))
                assert answer.status_code == 200, answer.text
                etags[answer.json()["etag"]] = number
                # After the answer every worker serves it: more questions than there are workers, on new connections.
                for _ in range(6):
                    assert look_up(fresh, "table", [number]).json()["output"]["values"] == [number] * WIDTH
            until(lambda: min(reader.count for reader in readers) > 20)
        for reader in readers:
            # A reader may see a content before its upload is answered, so this is judged at the end.
            assert reader.found == {etag: etags[etag] for etag in reader.found}
        assert len(readers[0].seen | readers[1].seen) > 3
        assert space(folder / "tensors") == taken
        assert list((folder / "incoming").iterdir()) == []
        for _ in range(200):
            if resident_kib(server) < before + 40_000 and not mapped_and_removed(folder):
                break
            time.sleep(0.1)
        assert resident_kib(server) < before + 40_000
        assert mapped_and_removed(folder) == []


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
