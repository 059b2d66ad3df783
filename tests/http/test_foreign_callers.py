"""Who may call a service on a loopback address: Host must be a name of this machine, Origin none of a stranger."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.http.conftest import Start
from tests.http.raw import TINY, Wire, ask
from tests.http.server import Server


def request(*fields: str, line: str = "POST /gathernd HTTP/1.1") -> bytes:
    body = TINY if line.startswith("POST") else b""
    return "\r\n".join([line, f"Content-Length: {len(body)}", *fields, "", ""]).encode("latin-1") + body


def test_a_request_of_http_1_1_without_a_host_is_malformed(server: Server) -> None:
    answer = ask(server, request())
    assert answer.status == 400
    assert answer.json()["code"] == "malformed_request"


@pytest.mark.parametrize(
    "line", ["POST /gathernd", "OPTIONS /gathernd", "OPTIONS /tensors/x", "GET /livez", "GET /none"]
)
@pytest.mark.parametrize("origin", ["http://localhost", "https://example.com"])
def test_no_answer_lets_a_page_of_another_site_read_it(server: Server, line: str, origin: str) -> None:
    fields = ["Host: localhost", f"Origin: {origin}", "Access-Control-Request-Method: PUT"]
    answer = ask(server, request(*fields, line=f"{line} HTTP/1.1"))
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("method", ["POST /gathernd", "GET /livez"])
@pytest.mark.parametrize(
    ("target", "host", "status"),
    [("http://evil.example", "localhost", 403), ("http://evil.example:80", "localhost", 403),
     ("http://localhost@evil.example", "localhost", 403), ("http://evil.example@localhost", "localhost", 403),
     ("http://localhost:8080", "evil.example", 200), ("HTTP://LOCALHOST", "evil.example", 200)],
)  # fmt: skip
def test_the_host_of_an_address_as_target_counts_and_not_that_of_the_field(
    server: Server, method: str, target: str, host: str, status: int
) -> None:
    line = method.replace(" ", f" {target}") + " HTTP/1.1"
    with Wire(server) as wire:
        for _ in range(2):  # headers that came before take a shorter way
            wire.send(request(f"Host: {host}", line=line))
            assert wire.read().status == status


def test_an_address_as_target_does_not_replace_a_missing_host(server: Server) -> None:
    assert ask(server, request(line="POST http://localhost/gathernd HTTP/1.1")).status == 400
    old = ask(server, request(line="POST http://evil.example/gathernd HTTP/1.0"))
    assert (old.status, old.json()["code"]) == (403, "forbidden")


SCATTER = b'{"indices":{"dtype":"int64","values":[[0]]},"updates":{"dtype":"uint8","values":[9]}}'
CHANGES = (
    ("PUT", "/tensors/changed?dtype=uint8&shape=1", b"x"),
    ("POST", "/tensors/changed/scatter", SCATTER),
    ("POST", "/tensors/changed/import", b'{"url":"https://host.example/x.npy"}'),
    ("PUT", "/aliases/now", b'{"tensor":"changed@1"}'),
    ("DELETE", "/aliases/now", b""),
    ("DELETE", "/tensors/changed", b""),
    ("DELETE", "/imports/1", b""),
)


def change(server: Server, method: str, path: str, body: bytes, origin: str | None) -> int:
    fields = [f"Host: localhost:{server.port}", f"Content-Length: {len(body)}"]
    fields += ["Content-Type: application/octet-stream"] if "shape" in path else []
    fields += [] if origin is None else [f"Origin: {origin}"]
    return ask(server, "\r\n".join([f"{method} {path} HTTP/1.1", *fields, "", ""]).encode() + body).status


def test_a_page_of_another_port_of_this_machine_changes_nothing(server: Server) -> None:
    assert change(server, *CHANGES[0], None) in (200, 201)
    for origin in ("http://localhost:1", "http://localhost", f"http://127.0.0.1:{server.port}"):
        for method, path, body in CHANGES:
            assert change(server, method, path, body, origin) == 403, (origin, method, path)
    assert ask(server, request("Host: localhost", line="GET /tensors/changed/content HTTP/1.1")).body[-1:] == b"x"


@pytest.mark.parametrize("own", [True, False])
def test_the_own_page_and_callers_that_are_no_page_change_what_they_like(server: Server, own: bool) -> None:
    origin = f"http://localhost:{server.port}" if own else None
    for method, path, body in CHANGES[:2]:
        assert change(server, method, path, body, origin) in (200, 201), path
    assert change(server, *CHANGES[5], origin) == 204


def test_a_verdict_is_remembered_rightly(server: Server) -> None:
    with Wire(server) as wire:
        for host, status in (("localhost", 200), ("example.com", 403)) * 3:
            wire.send(request(f"Host: {host}"))
            assert wire.read().status == status


@pytest.fixture(scope="module")
def named(start: Start) -> Iterator[Server]:
    with start("--allowed-hosts", "Gather.internal,10.1.2.3") as server:
        yield server


@pytest.mark.parametrize(
    ("host", "status"),
    [("gather.internal", 200), ("GATHER.internal:8080", 200), ("10.1.2.3", 200), ("localhost", 200), ("internal", 403),
     ("x.gather.internal", 403), ("gather.internal.example", 403), ("10.1.2.4", 403)],
)  # fmt: skip
def test_allowed_hosts_are_welcome_beside_loopback_names(named: Server, host: str, status: int) -> None:
    assert ask(named, request(f"Host: {host}")).status == status
    assert ask(named, request("Host: localhost", f"Origin: http://{host}")).status == status
    changed = request("Host: localhost:1", f"Origin: https://{host}", line="DELETE /tensors/none HTTP/1.1")
    assert ask(named, changed).status == (403 if status == 403 or host == "localhost" else 404)


PAGE = "https://app.example"
PREFLIGHT = ("Access-Control-Request-Method: PUT", "Access-Control-Request-Headers: authorization, content-type")


@pytest.fixture(scope="module")
def across(start: Start) -> Iterator[Server]:
    with start("--cors-origins", f"{PAGE}, http://Other.example:81") as server:
        yield server


@pytest.mark.parametrize("origin", [PAGE, "http://other.example:81"])
def test_a_page_of_a_named_origin_may_call_and_read(across: Server, origin: str) -> None:
    for _ in range(3):  # headers that came before take a shorter way
        answer = ask(across, request("Host: localhost", f"Origin: {origin}", "Content-Type: application/json"))
        assert answer.status == 200
        assert answer.json()["output"]["values"] == [8]
        assert answer.headers["access-control-allow-origin"] == origin
        assert answer.headers["vary"] == "Origin"
        assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
        assert answer.headers["x-request-id"]
        assert answer.headers["server-timing"]


def test_a_browser_that_asks_first_is_told(across: Server) -> None:
    for line in ("OPTIONS /tensors/x", "OPTIONS /gathernd"):
        fields = ["Host: localhost", f"Origin: {PAGE}", *PREFLIGHT]
        answer = ask(across, request(*fields, line=f"{line} HTTP/1.1"))
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "PUT" in answer.headers["access-control-allow-methods"]
        assert "authorization" in answer.headers["access-control-allow-headers"].lower()


@pytest.mark.parametrize(
    "origin",
    ["https://app.example:444", "http://app.example", "https://x.app.example", "https://app.example.com", "null"],
)
def test_other_origins_stay_forbidden(across: Server, origin: str) -> None:
    answer = ask(across, request("Host: localhost", f"Origin: {origin}"))
    assert answer.status == 403
    assert "access-control-allow-origin" not in answer.headers
    preflight = ask(
        across, request("Host: localhost", f"Origin: {origin}", *PREFLIGHT, line="OPTIONS /gathernd HTTP/1.1")
    )
    assert "access-control-allow-origin" not in preflight.headers


@pytest.mark.parametrize("line", ["GET /livez", "HEAD /livez", "GET /none", "GET /tensors"])
def test_a_cache_is_told_that_the_answer_to_a_page_is_another(across: Server, line: str) -> None:
    with Wire(across) as wire:
        wire.send(request("Host: localhost", line=f"{line} HTTP/1.1"))
        assert wire.read(head=line.startswith("HEAD")).headers["vary"] == "Origin"
