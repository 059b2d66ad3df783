"""Many large requests at once, and some that claim much and send nothing: neither starves nor kills the service."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.http.conftest import Start
from tests.http.held import metric, until
from tests.http.raw import TINY, Answer, Wire, request
from tests.http.server import Server

MIB = 1 << 20
GIB = 1 << 30
BUDGET = 64 * MIB
CONSTANT = 40 * MIB
"""What the service may hold beside its budget and the budget of small requests: buffers of the network among it."""
BINARY = "Content-Type: application/x-safetensors"
CLAIM = request(b"", f"Content-Length: {GIB}", BINARY, length=False)


@pytest.fixture(scope="module")
def narrow(start: Start) -> Iterator[Server]:
    """A server with a budget for 15 large requests, warmed up by some."""
    with start("--memory-budget", str(BUDGET), "--max-body-bytes", "1GiB", "--threads", "2") as server:
        for _ in range(3):
            assert answer(server, *large(1)).status == 200
        yield server


def large(seed: int, rows: int = 1024) -> tuple[bytes, bytes]:
    """`rows` of 4 KiB and as many to come back, usually an eighth of the budget together; the bytes expected."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, 4096), dtype=np.uint8)
    order = rng.permutation(rows)[:, None]
    return save({"data": data, "indices": order}), data[order[:, 0]].tobytes()


def answer(server: Server, body: bytes, expected: bytes, expect: bool = False) -> Answer:
    """Send a request, with `expect` its body once it is asked for, and read its answer: right, or a refusal."""
    with Wire(server, timeout=60) as wire:
        if expect:
            wire.send(request(b"", f"Content-Length: {len(body)}", BINARY, "Expect: 100-continue", length=False))
            found = wire.read()
            if found.status == 100:
                wire.send(body)
                found = wire.read()
        else:
            wire.send(request(body, BINARY))
            found = wire.read()
    if found.status == 200:
        assert load(found.body)["output"].tobytes() == expected
    else:
        assert json.loads(found.body)["code"] == "overloaded"
        assert int(found.headers["retry-after"]) >= 1
    return found


def wait_until_free(server: Server) -> None:
    """Until nothing waits and nothing is held: an answer may come before what it held is given back."""
    until(lambda: not (metric(server, "gathernd_queue_depth") or metric(server, "gathernd_memory_used_bytes")))


@pytest.mark.slow
def test_a_hundred_large_requests_at_once_stay_within_the_budget_and_most_are_answered(narrow: Server) -> None:
    work = [large(seed) for seed in range(4)]
    before = narrow.forget_peak()
    client = narrow.shared_client()
    with ThreadPoolExecutor(100) as pool:
        asked = [pool.submit(answer, narrow, *work[number % 4]) for number in range(100)]
        for _ in range(20):  # small ones are answered meanwhile
            assert client.post("/gathernd", content=TINY).status_code == 200
        statuses = Counter(future.result().status for future in asked)
    assert set(statuses) <= {200, 503}
    assert statuses[200] >= 70, statuses
    grown = narrow.peak() - before
    assert grown <= BUDGET + max(BUDGET // 8, 16 * MIB) + CONSTANT, f"{grown / MIB:.0f} MiB"
    wait_until_free(narrow)
    assert answer(narrow, *work[0]).status == 200


@pytest.mark.slow
def test_a_hundred_bodies_of_unknown_length_at_once_stay_within_the_budget(narrow: Server) -> None:
    """Nothing is known of them when they are let in: what comes is charged before memory is taken for it."""
    work = large(7, 3072)  # 12 MiB
    before = narrow.forget_peak()
    with ThreadPoolExecutor(100) as pool:
        statuses = Counter(pool.map(lambda _: answer_to_chunks(narrow, *work), range(100)))
    assert set(statuses) <= {200, 503}
    assert statuses[200] >= 1, statuses
    grown = narrow.peak() - before
    connections = max(BUDGET // 16, 16 * MIB)  # what they have sent and was not parsed yet
    assert grown <= BUDGET + max(BUDGET // 8, 16 * MIB) + connections + CONSTANT, f"{grown / MIB:.0f} MiB"
    wait_until_free(narrow)
    assert answer(narrow, *work).status == 200


def answer_to_chunks(server: Server, body: bytes, expected: bytes) -> int:
    """The status of the answer to a request whose body comes in chunks: right, or a refusal."""
    with Wire(server, timeout=60) as wire:
        wire.send(request(b"", "Transfer-Encoding: chunked", BINARY, length=False))
        for start in range(0, len(body), MIB):
            piece = body[start : start + MIB]
            with suppress(ConnectionError):
                wire.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        with suppress(ConnectionError):
            wire.send(b"0\r\n\r\n")
        found = wire.read()
    if found.status == 200:
        assert load(found.body)["output"].tobytes() == expected
    else:
        assert json.loads(found.body)["code"] == "overloaded"
    return found.status


def test_idle_requests_that_claim_a_gigabyte_each_hold_nothing_and_nobody_up(start: Start) -> None:
    with start("--memory-budget", str(GIB + MIB), "--threads", "2") as server, ExitStack() as idle:
        body, expected = large(5)
        assert answer(server, body, expected).status == 200
        before = server.forget_peak()
        for _ in range(12):
            wire = idle.enter_context(Wire(server))
            wire.send(CLAIM + b"\0" * 100)
        until(lambda: metric(server, "gathernd_requests_in_flight") >= 13)  # and the one that asks
        assert metric(server, "gathernd_memory_used_bytes") < MIB
        for _ in range(5):
            assert answer(server, body, expected).status == 200
        assert server.peak() - before < CONSTANT
        assert server.shared_client().post("/gathernd", content=TINY).status_code == 200
