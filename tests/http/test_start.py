"""Starting: what /readyz waits for, and that no request ever compiles."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from random import Random
from time import monotonic, sleep

import pytest

from app.main import create_app
from app.settings import Settings
from tests.http.conftest import Start
from tests.http.forms import TYPES, nested, packed, tensor
from tests.http.provoked import PROVOKED
from tests.http.raw import TINY
from tests.http.rules import DIALECTS, zeros
from tests.http.server import Server, serving
from tests.http.test_overload import faulty
from tests.http.test_properties import value_of


def compilations(server: Server) -> int:
    return int(server.shared_client().get("/compilations").text)


def test_no_request_compiles_or_loads_compiled_code(start: Start) -> None:
    """Every type, dialect, form, kind of error, and sizes on either side of each route."""
    source = Random(5)
    with start(command=faulty("counting")) as server:
        client = server.shared_client()
        before = compilations(server)
        assert before > 0, "nothing was compiled at the start, so the count counts nothing"
        answered = 0
        sizes = [(dtype, count) for dtype in TYPES for count in (1, 3, 500)] + [("int8", 40_000), ("float32", 40_000)]
        for (dtype, count), (path, dialect) in product(sizes, DIALECTS):
            data = tensor(dtype, [count], [value_of(dtype, source) for _ in range(count)])
            for index_dtype in ("int64", "int32", "uint8") if count == 3 else ("int64",):
                rank = [count, 1] if path == "/gathernd" else [count]
                indices = tensor(index_dtype, rank, zeros(index_dtype, rank))
                for form in (dict, nested, packed) if count < 500 else (source.choice((dict, packed)),):
                    body = {"data": form(data), "indices": form(indices), "dialect": dialect}
                    body["output_encoding"] = source.choice(("values", "base64"))
                    answered += client.post(path, content=json.dumps(body)).status_code == 200
        assert answered > 300
        for case in PROVOKED:
            content = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
            client.post(case.path, content=content, headers=case.headers)
        for path in ("/", "/metrics", "/docs", "/openapi.json", "/errors", "/readyz"):
            client.get(path)
        assert compilations(server) == before


def test_readiness_names_what_it_waits_for() -> None:
    app = create_app(Settings())
    assert not app.readiness.ready
    assert app.readiness.error().detail.endswith("waits for: kernels")


def test_a_service_that_cannot_prepare_its_kernels_ends_and_says_so(start: Start) -> None:
    with start(command=faulty("failing"), ready=False, tracebacks=True) as server:
        assert server.process.wait(60) == 3
        server.process.returncode = 0  # the end that is expected of other servers
        assert "the kernels could not be prepared" in server.log_text()
        assert "the service cannot start without its kernels" in server.log_text()


def test_what_only_the_commands_for_callers_use_is_not_imported_to_serve() -> None:
    """A quarter of a second of every start."""
    program = "import sys, app.cli.serve_command, gathernd_cli.command_line as command; "
    program += "sys.exit(', '.join({'gathernd', 'httpx', 'rich.progress'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


_FAULTY_SWEEP = """
from time import sleep
from app.store import LocalStore
calls = []
def sweep(self):
    calls.append(1)
    if len(calls) == 1:
        raise RuntimeError("an unexpected one")
    sleep(1.5)
LocalStore.sweep = sweep
from gathernd_cli import main
main()
"""


def test_a_background_task_that_fails_is_counted_and_goes_on_and_no_request_waits_for_it(start: Start) -> None:
    with start(command=(sys.executable, "-c", _FAULTY_SWEEP, "serve"), tracebacks=True) as server:
        client = server.shared_client()
        failures = 'gathernd_background_failures_total{task="sweep"} 1.0'
        end = monotonic() + 20
        while failures not in client.get("/metrics").text:
            assert monotonic() < end, server.log_text()
            sleep(0.05)
        assert "the background task 'sweep' failed and starts again" in server.log_text()
        # From its next start on it blocks three quarters of the time.
        end, times = monotonic() + 4, []
        while monotonic() < end:
            asked = monotonic()
            assert client.get("/livez").status_code == 200
            times.append(monotonic() - asked)
            sleep(0.02)
        assert max(times) < 1.0, max(times)
        assert failures in client.get("/metrics").text


def test_with_numpys_kernel_no_gather_kernel_is_compiled(warmed: Path, tmp_path: Path) -> None:
    """The readers of requests are compiled for every service: their code is taken from another one's cache here."""
    cache = tmp_path / "cache"
    shutil.copytree(warmed, cache, ignore=shutil.ignore_patterns("numba-*", "calibration*"))
    readers = {path.name for path in cache.iterdir()}
    assert len(readers) >= 3
    with serving(cache, tmp_path / "server", "--kernel", "numpy") as server:
        assert server.shared_client().post("/gathernd", content=TINY).json()["output"]["values"] == [8]
    assert {path.name for path in cache.iterdir() if path.is_dir()} == readers


@pytest.mark.soak
def test_a_cache_folder_that_cannot_be_written_does_not_hinder(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    with serving(blocked, tmp_path / "server") as server:
        assert server.shared_client().post("/gathernd", content=TINY).status_code == 200
