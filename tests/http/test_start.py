"""Starting: what /readyz waits for, and that no request ever compiles."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.conftest import SOAK
from tests.golden.answers import service
from tests.golden.requests import requests
from tests.http.conftest import Start
from tests.http.forms import TYPES, nested, packed, tensor
from tests.http.held import faulty, held, held_in, until
from tests.http.raw import TINY
from tests.http.rules import DIALECTS, zero
from tests.http.server import Server, serving
from tests.parity.items import items as random_items
from tests.parity.messages import values

STRINGS = {
    "data": {"dtype": "string", "values": ["one", "zwei\n"]},
    "indices": {"dtype": "int64", "values": [1, 0, 1]},
}


def compilations(server: Server) -> int:
    return int(server.shared_client().get("/compilations").text)


def test_no_request_compiles_or_loads_compiled_code(start: Start) -> None:
    """Every type, dialect, form, kind of error, and sizes on either side of each route."""
    source, rng = Random(5), np.random.default_rng(5)
    turns: Iterator[tuple[str, Any]] = cycle(product(("int64", "int32", "uint8"), (dict, nested, packed)))
    with start(command=faulty("counting")) as server:
        client = server.shared_client()
        before = compilations(server)
        assert before > 0, "nothing was compiled at the start, so the count counts nothing"
        answered = 0
        sizes = [(dtype, count) for dtype in TYPES for count in ((1, 3, 500) if SOAK else (3,))]
        sizes += [(dtype, count) for dtype in ("int8", "float32") for count in (500, 40_000)]
        for (dtype, count), (path, dialect) in product(sizes, DIALECTS):
            data = tensor(dtype, [count], values(random_items(rng, dtype, [count])))
            for _ in range(9 if SOAK else 2):
                index_dtype, form = next(turns)
                form = source.choice((dict, packed)) if count >= 500 else form
                rank = [count, 1] if path == "/gathernd" else [count]
                indices = tensor(index_dtype, rank, [zero(index_dtype)] * count)
                body: dict[str, Any] = {"data": form(data), "indices": form(indices), "dialect": dialect}
                if path == "/gather":
                    body["axis"] = 0
                body["output_encoding"] = source.choice(("values", "base64"))
                answered += client.post(path, content=json.dumps(body)).status_code == 200
        assert answered > 100
        with service(server.port) as golden:
            for asked in list(requests())[:: 1 if SOAK else 5]:
                golden.ask(asked)
        for path in ("/", "/metrics", "/docs", "/openapi.json", "/errors", "/readyz"):
            client.get(path)
        assert compilations(server) == before


def test_a_service_that_cannot_prepare_its_kernels_ends_and_says_so(start: Start) -> None:
    with start(command=faulty("failing"), ready=False, tracebacks=True) as server:
        assert server.process.wait(60) == 3
        server.process.returncode = 0  # the end that is expected of other servers
        assert "the kernels could not be prepared" in server.log_text()
        assert "the service cannot start without its kernels" in server.log_text()


_FAULTY_SWEEP = """
import os
from pathlib import Path
from time import sleep
from app.store import LocalStore
calls, hold = [], Path(os.environ["GATHERND_STORE_DIR"]).parent / "hold"
def sweep(self):
    calls.append(1)
    if len(calls) == 1:
        raise RuntimeError("an unexpected one")
    if hold.exists():
        print("the sweep waits", flush=True)
    while hold.exists():
        sleep(0.01)
LocalStore.sweep = sweep
from gathernd_cli import main
main()
"""


def test_a_background_task_that_fails_is_counted_and_goes_on_and_no_request_waits_for_it(start: Start) -> None:
    with start(command=(sys.executable, "-c", _FAULTY_SWEEP, "serve"), tracebacks=True) as server:
        client = server.shared_client()
        failures = 'gathernd_background_failures_total{task="sweep"} 1.0'
        until(lambda: failures in client.get("/metrics").text)
        assert "the background task 'sweep' failed; it will be restarted" in server.log_text()
        with held(server):
            until(lambda: "the sweep waits" in server.log_text())
            for _ in range(20):
                assert client.get("/livez").status_code == 200
        assert failures in client.get("/metrics").text


def test_with_numpys_kernel_nothing_is_compiled(tmp_path: Path) -> None:
    """Requests of every kind are answered by Python and NumPy."""
    cache = tmp_path / "cache"
    with serving(cache, tmp_path / "server", "--kernel", "numpy") as server:
        client = server.shared_client()
        assert client.post("/gathernd", content=TINY).json()["output"]["values"] == [8]
        answer = client.post("/gather", json=STRINGS)
        assert answer.json()["output"]["values"] == ["zwei\n", "one", "zwei\n"]
        assert client.post("/gather", content=b"[01").json()["code"] == "malformed_request"
    assert not list(cache.rglob("*.nbi"))


@pytest.mark.slow
def test_a_first_start_answers_before_anything_is_compiled(tmp_path: Path) -> None:
    """NumPy's kernel gathers until then, and Python reads and writes requests."""
    data = {"dtype": "int32", "shape": [2, 2], "values": [1, 2, 3, 4]}
    indices = {"dtype": "int64", "shape": [1, 2], "values": [-1, 0]}
    body = {"data": data, "indices": indices, "axis": 0}
    cache, holding = tmp_path / "cache", ExitStack()
    holding.enter_context(held_in(tmp_path / "first"))
    with serving(cache, tmp_path / "first", command=faulty("counting")) as server:
        client = server.shared_client()
        with holding:
            answers = [client.post("/gather_elements", json=body)]
            refused = client.post("/gather_elements", json=body | {"axis": 5})
            bad = client.post("/gather_elements", json=body | {"indices": indices | {"values": [0, 2]}})
            assert (refused.status_code, bad.status_code) == (422, 422)
            answer = client.post("/gather", json=STRINGS)
            assert answer.json()["output"]["values"] == ["zwei\n", "one", "zwei\n"]
            log = server.log_text()
            assert "INFO gathernd: compiling kernels for the first time" in log
            assert f"INFO gathernd: ready on {server.url}, page at {server.url}/, docs at {server.url}/docs" in log
            assert "all kernels are compiled" not in log
        until(lambda: "all kernels are compiled" in server.log_text(), 240)
        before = compilations(server)
        answers.append(client.post("/gather_elements", json=body))
        assert compilations(server) == before
    assert [answer.json()["output"]["values"] for answer in answers] == [[3, 2], [3, 2]]
    with serving(cache, tmp_path / "second", command=faulty("counting")) as server:
        before = compilations(server)
        assert server.shared_client().post("/gather_elements", json=body).status_code == 200
        assert compilations(server) == before
