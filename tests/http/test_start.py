"""Starting: what /readyz waits for, and that no request ever compiles."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from random import Random

import pytest

from app.main import create_app
from app.settings import Settings
from tests.http.conftest import Start
from tests.http.forms import TYPES, nested, packed, tensor
from tests.http.provoked import PROVOKED
from tests.http.raw import TINY
from tests.http.rules import DIALECTS, zeros
from tests.http.server import Server, serving
from tests.http.test_overload import odd
from tests.http.test_properties import value_of


def compilations(server: Server) -> int:
    return int(server.shared_client().get("/compilations").text)


def test_no_request_compiles_or_loads_compiled_code(start: Start) -> None:
    """Every type, dialect, form, kind of error, and sizes on either side of each route."""
    source = Random(5)
    with start(command=odd("counting")) as server:
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
    with start(command=odd("failing"), ready=False, tracebacks=True) as server:
        assert server.process.wait(60) == 3
        server.process.returncode = 0  # the end that is expected of other servers
        assert "the kernels could not be prepared" in server.log_text()
        assert "the service cannot start without its kernels" in server.log_text()


@pytest.mark.soak
def test_a_cache_folder_that_cannot_be_written_does_not_hinder(tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    with serving(blocked, tmp_path / "server") as server:
        assert server.shared_client().post("/gathernd", content=TINY).status_code == 200
