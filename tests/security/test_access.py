"""Keys against a real server: which routes ask, rotation while it runs, and a service that others can reach."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.operators.registry import GRADIENTS, OPERATORS
from app.security import api_keys
from app.tensors.lookup_call import LOOKUP
from tests.conftest import slow_but_for
from tests.for_each import for_each
from tests.http import raw
from tests.http.conftest import Start
from tests.http.held import until
from tests.http.server import GATHERND, Server, run_program

BODY = {
    "data": {"dtype": "int32", "shape": [3], "values": [5, 6, 7]},
    "indices": {"dtype": "int64", "shape": [1, 1], "values": [2]},
}
CHANGES = {
    ("PUT", "/tensors/a"): "unsupported_media_type",
    ("DELETE", "/tensors/a"): "tensor_not_found",
    ("PUT", "/tensors/a/replicas"): "invalid_field",
    ("POST", "/tensors/a/scatter"): "malformed_request",
    ("POST", "/tensors/a/upsert"): "malformed_request",
    ("POST", "/tensors/a/remove"): "malformed_request",
    ("POST", "/tensors/a/import"): "malformed_request",
    ("DELETE", "/imports/a"): "not_found",
    ("PUT", "/aliases"): "malformed_request",
    ("PUT", "/aliases/a"): "malformed_request",
    ("DELETE", "/aliases/a"): "tensor_not_found",
}
"""What changes something, and the error of an empty body, or of one machine, once the key was enough."""


@dataclass
class Guarded:
    """A server that asks for keys, and a key for each scope."""

    server: Server
    protocol: httpx.Client
    """The client for paths below /v2, whose answers have another form than what the server's own client looks for."""
    file: Path
    gather: str
    tensors: str

    def ask(self, method: str, path: str, key: str | None = None, **options: Any) -> httpx.Response:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        client = self.protocol if path.startswith("/v2") else self.server.shared_client()
        return client.request(method, path, headers=headers, **options)


@pytest.fixture(scope="module")
def guarded(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    gather, tensors = api_keys.add(file, "gather", ["gather"]), api_keys.add(file, "tensors", ["tensors"])
    with (
        start("--api-keys-file", str(file)) as server,
        httpx.Client(base_url=server.url, trust_env=False, timeout=60) as protocol,
    ):
        yield Guarded(server, protocol, file, gather, tensors)


@pytest.fixture(scope="module")
def reachable(start: Start) -> Iterator[Server]:
    """A server without keys on all addresses of this machine."""
    with start("--host", "0.0.0.0") as server:
        yield server


def operations(server: Server) -> Iterator[tuple[str, str, bool]]:
    """Method, path with its places filled in, and whether a key may be asked for, of every documented operation."""
    with server.client() as client:
        document = client.get("/openapi.json").json()
    assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            filled = (
                path.replace("docs/{asset}", "docs/swagger-ui.css")
                .replace("{asset}", "page.css")
                .replace("{code}", "internal")
            )
            security = operation.get("security", document.get("security", []))
            assert security in ([], [{}, {"bearer": []}])
            assert not security or "401" in operation["responses"]
            yield method.upper(), re.sub(r"\{\w+\}", "x", filled), bool(security)


def test_every_documented_route_asks_for_a_key_or_is_public(guarded: Guarded) -> None:
    public = set()
    for method, path, asks in operations(guarded.server):
        answer = guarded.ask(method, path)
        if asks:
            assert answer.status_code == 401, (method, path)
            assert answer.json()["code"] == "unauthorized"
            assert answer.headers["www-authenticate"] == 'Bearer realm="gathernd"'
        else:
            assert answer.status_code == 200, (method, path)
            public.add(path)
    assert public == {
        "/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/errors", "/errors/internal", "/docs",
        "/docs/swagger-ui.css", "/openapi.json", "/", "/assets/page.css", "/favicon.ico",
    }  # fmt: skip


def test_every_documented_route_that_writes_is_known_to_the_rule_of_scopes(guarded: Guarded) -> None:
    """A new route that changes something must be decided on: see `Access`."""
    writing = {path for method, path, _ in operations(guarded.server) if method not in ("GET", "HEAD")}
    known = {LOOKUP, *(row.path[1:] for row in OPERATORS.values()), *(row.path[1:] for row in GRADIENTS.values())}
    below = ("/v2/", "/tensors/", "/aliases", "/imports/")
    undecided = {path for path in writing if path[1:] not in known and not path.startswith(below)}
    assert undecided == set()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("PUT", "/gathernd", 405), ("OPTIONS", "/gathernd", 204)],
)
def test_what_does_not_exist_asks_for_a_key_too(method: str, path: str, status: int, guarded: Guarded) -> None:
    assert guarded.ask(method, path).status_code == 401
    assert guarded.ask(method, path, guarded.gather).status_code == status


def test_a_key_gathers(guarded: Guarded) -> None:
    answer = guarded.ask("POST", "/gathernd", guarded.gather, json=BODY)
    assert answer.json()["output"]["values"] == [7]
    assert guarded.ask("POST", "/gathernd", guarded.gather + "x", json=BODY).status_code == 401
    refused = guarded.ask("POST", "/gathernd", guarded.tensors, json=BODY)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")


def test_a_refusal_under_the_protocol_has_the_protocols_form(guarded: Guarded) -> None:
    answer = guarded.ask("POST", "/v2/models/gathernd/infer", json={})
    assert answer.status_code == 401
    assert isinstance(answer.json()["error"], str)


@pytest.mark.parametrize(("method", "path", "code"), [(*change, code) for change, code in CHANGES.items()])
def test_changing_a_tensor_needs_its_scope(method: str, path: str, code: str, guarded: Guarded) -> None:
    assert guarded.ask(method, path).status_code == 401
    refused = guarded.ask(method, path, guarded.gather)
    assert refused.status_code == 403
    assert "'tensors'" in refused.json()["detail"]
    assert guarded.ask(method, path, guarded.tensors).json()["code"] == code


def wait_for_status(guarded: Guarded, key: str, wanted: int) -> None:
    until(lambda: guarded.ask("POST", "/gathernd", key, json=BODY).status_code == wanted, 15)


def test_keys_rotate_without_a_restart_and_a_broken_file_harms_nobody(guarded: Guarded) -> None:
    new = api_keys.add(guarded.file, "new", ["gather"])
    assert guarded.ask("POST", "/gathernd", guarded.gather, json=BODY).status_code == 200
    wait_for_status(guarded, new, 200)
    api_keys.remove(guarded.file, "new")
    wait_for_status(guarded, new, 401)
    good = guarded.file.read_bytes()
    guarded.file.write_bytes(b"not a keys file\n")
    until(lambda: "keys file: line 1" in guarded.server.log_text())
    assert guarded.ask("POST", "/gathernd", guarded.gather, json=BODY).status_code == 200
    assert guarded.ask("POST", "/gathernd", "wrong", json=BODY).status_code == 401
    guarded.file.write_bytes(good)


def test_no_key_and_no_digest_reaches_the_log(guarded: Guarded) -> None:
    log = guarded.server.log_text()
    digests = [key.digest.hex() for key in api_keys.read(guarded.file)]
    assert len(digests) >= 2
    for secret in (guarded.gather, guarded.tensors, *digests):
        assert secret not in log


@pytest.mark.parametrize("content", slow_but_for((None,), (None, "nonsense\n")))
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_service_that_is_to_ask_for_keys_does_not_start_without(
    content: str | None, workers: str, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    command = [GATHERND, "serve", "--port", "0", "--api-keys-file", str(file), "--workers", workers]
    command += ["--store-dir", str(tmp_path / "store"), "--cache-dir", str(tmp_path)]
    done = run_program(command)
    assert done.returncode == 2
    assert "GATHERND_API_KEYS_FILE" in done.stderr
    assert "Traceback" not in done.stderr


@for_each(("method", "path"), [*CHANGES, ("PUT", "/tensors/"), ("POST", "/tensors"), ("PUT", "/aliases/")])
@for_each("forged", [{}, {"x-forwarded-for": "127.0.0.1", "host": "localhost"}])
def test_without_keys_nobody_changes_tensors_of_a_service_that_others_reach(
    method: str, path: str, forged: dict[str, str], reachable: Server
) -> None:
    with reachable.client() as client:
        answer = client.request(method, path, headers=forged)
    assert answer.status_code == 403
    assert "GATHERND_API_KEYS_FILE" in answer.json()["detail"]
    assert "gathernd keys add" in answer.json()["detail"]


def test_without_keys_a_service_that_others_reach_still_gathers(reachable: Server) -> None:
    with reachable.client() as client:
        assert client.post("/gathernd", json=BODY).json()["output"]["values"] == [7]
        assert client.get("/metrics").status_code == 200
        assert client.post("/gather_nd", json=BODY).status_code == 404
        assert client.get("/tensors/x").json()["code"] == "tensor_not_found"
        assert client.get("/tensors").json() == {"tensors": [], "next": None}


def test_a_header_that_was_let_in_before_is_refused_once_its_key_is_gone(guarded: Guarded) -> None:
    """Headers that come again are not read again; the keys must hold for them all the same."""
    leaver = api_keys.add(guarded.file, "leaver", ["gather"])
    wait_for_status(guarded, leaver, 200)
    sent = raw.request(raw.TINY, f"Authorization: Bearer {leaver}")
    unknown = raw.request(raw.TINY, f"Authorization: Bearer {leaver[:-1]}x")
    with raw.Wire(guarded.server) as wire:
        for one, status in [(sent, 200), (sent, 200), (unknown, 401), (unknown, 401), (sent, 200)]:
            wire.send(one)
            assert wire.read().status == status
        api_keys.remove(guarded.file, "leaver")

        def is_refused() -> bool:
            wire.send(sent)
            return wire.read().status == 401

        until(is_refused)
        assert is_refused()
