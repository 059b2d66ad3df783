"""Imports over two workers: each answers for all, and what a worker that dies was importing has failed."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import numpy as np

from tests.http.conftest import Start
from tests.http.held import until
from tests.http.server import TWO_WORKERS
from tests.http.tensors import npy
from tests.imports.range_server import range_server

_SOON = "import app.store.local_store as m; m._LEFTOVERS_INTERVAL_NS = 10**8; from gathernd_cli import main; main()"
"""A service that soon removes what dead processes have left; workers do so too if they are forked (in `make test`)."""


def state_of(url: str, where: str) -> dict[str, Any]:
    """What one of the workers says of an import; each connection is a new one, to either."""
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        answer = client.get(where)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())


def test_every_worker_knows_each_import_and_one_that_dies_leaves_nothing_of_its_own(
    start: Start, tmp_path: Path
) -> None:
    going = Event()
    with range_server() as source:
        source.files = {"/a.npy": npy(np.arange(10)), "/held.npy": npy(np.zeros(1 << 20))}

        def respond(handler: Any) -> bool:
            if handler.path == "/held.npy" and handler.headers["Range"] != "bytes=0-65535":
                going.wait(60)
            return False

        source.respond = respond
        flags = (*TWO_WORKERS, "--import-from", source.url, "--store-dir", str(tmp_path / "store"))
        command = (sys.executable, "-c", _SOON, "serve")
        with (
            start(*flags, command=command) as server,
            httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client,
        ):
            begun = client.post("/tensors/a/import", json={"url": f"{source.url}/a.npy"})
            assert begun.status_code == 202, begun.text
            until(lambda: state_of(server.url, begun.headers["location"])["state"] != "running")
            for _ in range(8):
                assert state_of(server.url, begun.headers["location"])["state"] == "done"
            held = client.post("/tensors/held/import", json={"url": f"{source.url}/held.npy"}).headers["location"]
            for _ in range(8):
                assert state_of(server.url, held)["state"] == "running"
            assert len(list((tmp_path / "store" / "incoming").iterdir())) == 1
            os.kill(importing_worker(tmp_path / "store"), signal.SIGKILL)
            until(lambda: state_of(server.url, held)["state"] != "running")
            found = state_of(server.url, held)
            assert (found["state"], found["error"]["code"]) == ("failed", "import_failed")
            assert "process" in found["error"]["detail"]
            until(lambda: not list((tmp_path / "store" / "incoming").iterdir()))
            assert httpx.get(f"{server.url}/tensors/held", trust_env=False, timeout=60).status_code == 404
        going.set()
    assert {path.suffix for path in (tmp_path / "store" / "imports").iterdir()} == set()


def importing_worker(store: Path) -> int:
    """The process that has the file of the running import open."""
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            target = path.readlink()
        except OSError:
            continue
        if target.parent == store / "imports" and target.suffix == ".run":
            return int(path.parts[2])
    raise AssertionError("no process carries it out")
