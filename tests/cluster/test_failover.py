"""A shard that dies under load: its replicas answer, and without one only what needs its rows fails."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest

from tests.cluster.answering import Handler, answering
from tests.cluster.running import Placed, routing
from tests.conftest import SOAK, TEST_ALL
from tests.http.conftest import Start
from tests.http.forms import int64
from tests.http.server import GATHERND, Server, run_program

ROWS, WIDTH = 4000, 16
TABLE = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH)
SHARDS = 3
PAUSE_S = 0.0 if SOAK else 0.01
"""How long a client of the load rests between two requests."""


@dataclass
class Cluster:
    router: Server
    shards: list[Server]
    placed: Placed


@contextmanager
def cluster(start: Start, folder: Path, replicas: int) -> Iterator[Cluster]:
    """A router and three shards that have a table in four ranges; shards may be killed, and started again."""
    with ExitStack() as stack:
        shards = [stack.enter_context(killable(start)) for _ in range(SHARDS)]
        placed = Placed(shards)
        placed.add("items", TABLE, replicas=replicas)
        path = folder / "map.json"
        placed.write(path)
        with routing(start, path) as router:
            yield Cluster(router, shards, placed)


@contextmanager
def killable(start: Start) -> Iterator[Server]:
    """A server that a test may kill."""
    running = start()
    server = running.__enter__()
    try:
        yield server
    finally:
        if server.process.poll() is None:
            running.__exit__(None, None, None)
        elif server.shared is not None:
            server.shared.close()


def ask(client: httpx.Client, rng: np.random.Generator, low: int = 0, high: int = ROWS) -> httpx.Response:
    """Gather or look up some rows of [low, high), and check them where they are answered: all of one version."""
    rows = rng.integers(low, high, 64)
    indices = int64([64, 1], rows.tolist())
    if rng.random() < 0.5:
        body: dict[str, Any] = {"data": {"tensor": "items"}, "indices": indices}
        answer = client.post("/gathernd", json=body)
        pooled = False
    else:
        feature = {"tensor": "items", "indices": int64([64], rows.tolist()), "offsets": int64([1], [0])}
        answer = client.post("/lookup", json={"features": [feature | {"pooling": "max"}]})
        pooled = True
    if answer.status_code == 200:
        told = answer.json()
        version = told["features"][0]["version"] if pooled else told["version"]
        wanted = (TABLE if version == 1 else -TABLE)[rows]
        if pooled:
            wanted = wanted.max(0, keepdims=True)
        assert (np.array(told["output"]["values"], np.float32).reshape(wanted.shape) == wanted).all()
    return answer


@contextmanager
def load(router: Server, threads: int = 3) -> Iterator[list[httpx.Response]]:
    """Requests all the time; every answer, in the end."""
    answers: list[httpx.Response] = []
    end = Event()

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with router.client() as client:
            while not end.wait(PAUSE_S):
                answers.append(ask(client, rng))

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(work, seed) for seed in range(threads)]
        try:
            yield answers
        finally:
            end.set()
        for one in running:
            one.result()


def refused(answers: list[httpx.Response]) -> list[str]:
    return [answer.text for answer in answers if answer.status_code != 200]


def test_with_two_replicas_no_request_fails(start: Start, tmp_path: Path) -> None:
    with cluster(start, tmp_path, 2) as running, load(running.router) as answers:
        wait_for(lambda: len(answers) > 50)
        victim = running.shards[1]
        os.kill(victim.process.pid, signal.SIGKILL)
        passed_over = f"skipping the shard 127.0.0.1:{victim.port}"
        wait_for(lambda: passed_over in running.router.log_text())
        before = len(answers)
        wait_for(lambda: len(answers) > before + 50)
    assert refused(answers) == []


@pytest.mark.slow
def test_with_one_replica_what_needs_no_lost_row_is_answered(start: Start, tmp_path: Path) -> None:
    with cluster(start, tmp_path, replicas=1) as running, running.router.client() as client:
        rng = np.random.default_rng(4)
        assert ask(client, rng).status_code == 200
        ranges = running.placed.tables["items"]["versions"][0]["ranges"]
        lost = ranges[2]
        victim = running.shards[2]
        os.kill(victim.process.pid, signal.SIGKILL)
        victim.process.wait(60)
        for _ in range(20):
            assert ask(client, rng, 0, lost["start"]).status_code == 200
        answer = client.post(
            "/gathernd",
            json={"data": {"tensor": "items"}, "indices": int64([3, 1], [0, lost["start"] - ROWS, lost["stop"] - 1])},
        )
        body = answer.json()
        assert (answer.status_code, body["code"]) == (503, "shard_unavailable")
        assert body["ranges"] == [{"tensor": "items@1", "start": lost["start"], "stop": lost["stop"]}]
        assert body["errors"] == [
            {"pointer": "/indices/values/1", "position": [1, 0], "value": lost["start"] - ROWS},
            {"pointer": "/indices/values/2", "position": [2, 0], "value": lost["stop"] - 1},
        ]
        assert body["total"] == 2
        # The same port and store again, as whoever looks after the process would have it.
        store = victim.log.parent
        with start("--port", str(victim.port), "--store-dir", str(store / "store")):
            end = monotonic() + 60
            while ask(client, rng, lost["start"], lost["stop"]).status_code != 200:
                assert monotonic() < end
                sleep(0.05)


@pytest.mark.slow
def test_the_file_of_the_map_is_read_again(start: Start, tmp_path: Path) -> None:
    with cluster(start, tmp_path, replicas=2) as running, running.router.client() as client, load(running.router):
        running.placed.add("items", -TABLE, number=2)
        running.placed.aliases["before"] = "items@1"
        running.placed.write(tmp_path / "map.json")
        wait_for(lambda: client.get("/tensors/items").json()["version"] == 2)
        body = {"data": {"tensor": "items"}, "indices": int64([1, 1], [7])}
        answer = client.post("/gathernd", json=body).json()
        assert (answer["version"], answer["output"]["values"]) == (2, (-TABLE[7]).tolist())
        body["data"] = {"tensor": "before"}
        assert client.post("/gathernd", json=body).json()["output"]["values"] == TABLE[7].tolist()
        (tmp_path / "map.json").write_text("{")
        wait_for(lambda: "keeping the last good map" in running.router.log_text())
        assert client.post("/gathernd", json=body).status_code == 200
        (tmp_path / "map.json").write_text(json.dumps({"generation": 9, "tables": {}}))
        wait_for(lambda: client.post("/gathernd", json=body).status_code == 404)


def wait_for(condition: Callable[[], bool], within: float = 100) -> None:
    end = monotonic() + within
    while not condition():
        assert monotonic() < end
        sleep(0.05)


class Busy(Handler):
    """A shard that is always busy, and keeps the header of what it is asked."""

    asked: ClassVar[list[dict[str, str]]] = []

    def respond(self) -> None:
        self.read_body()
        self.asked.append({name.lower(): value for name, value in self.headers.items()})
        self.answer(503, b'{"code": "overloaded"}', Retry_After="7")


def test_a_busy_shard_makes_the_router_busy_and_is_told_what_the_caller_said(start: Start, tmp_path: Path) -> None:
    version: dict[str, Any] = {"number": 1, "content_id": "c", "dtype": "float32", "shape": [4, 2]}
    path, key = tmp_path / "map.json", tmp_path / "key"
    key.write_text("secret-of-the-shards\n")
    body = {"data": {"tensor": "t"}, "indices": int64([1, 1], [0])}
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"x-request-id": "mine", "traceparent": trace, "x-gathernd-timeout": "9"}
    with answering(Busy) as address:
        version["ranges"] = [{"start": 0, "stop": 4, "tensor": "t@1", "replicas": [{"address": address}]}]
        path.write_text(json.dumps({"tables": {"t": {"versions": [version]}}}))
        with routing(start, path, "--cluster-key-file", str(key)) as router, router.client() as client:
            answer = client.post("/gathernd", json=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
            assert answer.headers["retry-after"] == "7"
            wrong = body | {"indices": int64([1, 1], [4])}
            asked = len(Busy.asked)
            assert client.post("/gathernd", json=wrong).status_code == 422
            assert len(Busy.asked) == asked
    told = Busy.asked[0]
    assert told["x-request-id"] == "mine"
    assert told["traceparent"] == trace
    assert told["x-gathernd-timeout"] == "9"
    assert told["authorization"] == "Bearer secret-of-the-shards"


def test_a_map_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    path = tmp_path / "map.json"
    path.write_text("{")
    for workers in ("1", "2") if TEST_ALL else ("1",):
        done = run_program(
            [GATHERND, "serve", "--port", "0", "--cluster", str(path), "--workers", workers],
            variables={**os.environ, "GATHERND_STORE_DIR": str(tmp_path / "store")},
        )
        assert done.returncode == 2
        assert f"--cluster (GATHERND_CLUSTER) {path}: " in done.stderr
