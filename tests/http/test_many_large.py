"""Many large requests at once, and some that claim much and send nothing: neither starves nor kills the service."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.http.conftest import Start
from tests.http.raw import TINY, Answer, Wire, request
from tests.http.server import Server
from tests.http.test_overload import metric

MIB = 1 << 20
GIB = 1 << 30
BUDGET = 64 * MIB
CONSTANT = 40 * MIB
"""What the service may hold beside its budget and the lane of small requests: buffers of the network among it."""
BINARY = "Content-Type: application/x-safetensors"
CLAIM = request(b"", f"Content-Length: {GIB}", BINARY, length=False)


@pytest.fixture(scope="module")
def narrow(start: Start) -> Iterator[Server]:
    """A server with a budget for 15 large requests, warmed up by some."""
    with start("--memory-budget", str(BUDGET), "--max-body-bytes", "1GiB", "--threads", "2") as server:
        for _ in range(3):
            assert answer(server, *large(1)).status == 200
        yield server


def large(seed: int) -> tuple[bytes, bytes]:
    """4 MiB of data and as much to come back, so that a request takes an eighth of the budget; the bytes expected."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (1024, 4096), dtype=np.uint8)
    order = rng.permutation(1024)[:, None]
    return save({"data": data, "indices": order}), data[order[:, 0]].tobytes()


def answer(server: Server, body: bytes, expected: bytes) -> Answer:
    """Send a request and read its answer, which must be right if it is one."""
    with Wire(server, timeout=60) as wire:
        wire.send(request(body, BINARY))
        found = wire.read()
    if found.status == 200:
        assert load(found.body)["output"].tobytes() == expected
    else:
        assert json.loads(found.body)["code"] == "overloaded"
        assert int(found.headers["retry-after"]) >= 1
    return found


def memory(server: Server, name: str) -> int:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) << 10


def reset_peak(server: Server) -> int:
    Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
    return memory(server, "VmRSS")


def test_a_hundred_large_requests_at_once_stay_within_the_budget_and_most_are_answered(narrow: Server) -> None:
    work = [large(seed) for seed in range(4)]
    before = reset_peak(narrow)
    client = narrow.shared_client()
    with ThreadPoolExecutor(100) as pool:
        asked = [pool.submit(answer, narrow, *work[number % 4]) for number in range(100)]
        for _ in range(20):  # small ones are answered meanwhile
            assert client.post("/gathernd", content=TINY).status_code == 200
        statuses = Counter(future.result().status for future in asked)
    assert set(statuses) <= {200, 503}
    assert statuses[200] >= 50, statuses
    grown = memory(narrow, "VmHWM") - before
    assert grown <= BUDGET + max(BUDGET // 8, 16 * MIB) + CONSTANT, f"{grown / MIB:.0f} MiB"
    assert metric(narrow, "gathernd_memory_used_bytes") == 0
    assert answer(narrow, *work[0]).status == 200


def test_a_request_that_claims_more_than_the_budget_is_refused_by_its_header(narrow: Server) -> None:
    with Wire(narrow) as wire:
        wire.send(CLAIM)
        found = wire.read()
        assert (found.status, found.json()["code"], found.json()["limit"]) == (
            413,
            "payload_too_large",
            "memory_budget",
        )


def test_idle_requests_that_claim_a_gigabyte_each_hold_nothing_and_nobody_up(start: Start) -> None:
    with start("--memory-budget", str(GIB + MIB), "--threads", "2") as server, ExitStack() as idle:
        body, expected = large(5)
        assert answer(server, body, expected).status == 200
        before = reset_peak(server)
        for _ in range(12):
            wire = idle.enter_context(Wire(server))
            wire.send(CLAIM + b"\0" * 100)
        end = monotonic() + 20
        while metric(server, "gathernd_requests_in_flight") < 13:  # and the one that asks
            assert monotonic() < end
            sleep(0.01)
        assert metric(server, "gathernd_memory_used_bytes") < MIB
        for _ in range(5):
            assert answer(server, body, expected).status == 200
        assert memory(server, "VmHWM") - before < CONSTANT
        assert server.shared_client().post("/gathernd", content=TINY).status_code == 200


def test_an_overloaded_service_answers_what_it_takes_and_refuses_the_rest_at_once(start: Start) -> None:
    """More of the pool's work than it can do: every answer is right or a refusal, and then all is as before."""
    indices = np.random.default_rng(3).integers(0, 1000, (60_000, 1))
    table = np.arange(1000, dtype=np.float32)
    body, expected = save({"data": table, "indices": indices}), table[indices[:, 0]].tobytes()
    flags = ("--threads", "1", "--max-queue", "0", "--loop-max-us", "0", "--memory-budget", "64MiB")
    with start(*flags) as server:
        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(answer, server, body, expected) for _ in range(320)]
            statuses = Counter(future.result().status for future in asked)
        assert set(statuses) == {200, 503}, statuses
        assert metric(server, "gathernd_queue_depth") == metric(server, "gathernd_memory_used_bytes") == 0
        assert answer(server, body, expected).status == 200
