"""Who may call a service on a loopback address: Host must be a name of this machine, Origin none of a stranger."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.http.conftest import Start
from tests.http.held import faulty, held, metric, until, wait_for_queue
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


def test_many_different_hosts_do_not_confuse_it(server: Server) -> None:
    with Wire(server) as wire:
        for number in range(1500):
            wire.send(request(f"Host: h{number}.localhost", line="GET /livez HTTP/1.1"))
            assert wire.read().status == 200
        wire.send(request("Host: h1.example"))
        assert wire.read().status == 403


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


@pytest.mark.parametrize(
    "fields", [(), (f"Origin: {PAGE}",), ("If-None-Match: *",), (f"Origin: {PAGE}", "If-None-Match: *")]
)
def test_a_download_has_one_field_vary(across: Server, fields: tuple[str, ...]) -> None:
    """`ask` refuses an answer with two of a name."""
    upload = "PUT /tensors/varied?dtype=uint8&shape=16 HTTP/1.1"
    body = bytes(16)
    head = f"{upload}\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\nContent-Length: 16\r\n\r\n"
    assert ask(across, head.encode() + body).status in (200, 201)
    answer = ask(across, request("Host: localhost", *fields, line="GET /tensors/varied/content HTTP/1.1"))
    assert answer.status in (200, 304)
    assert answer.headers["vary"] == "Origin, Accept"


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


@pytest.mark.parametrize("line", ["GET /livez", "GET /none", "GET /tensors", "GET /tensors/none", "PATCH /gathernd"])
def test_a_page_of_a_named_origin_may_read_every_answer(across: Server, line: str) -> None:
    answer = ask(across, request("Host: localhost", f"Origin: {PAGE}", line=f"{line} HTTP/1.1"))
    assert answer.headers["access-control-allow-origin"] == PAGE


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


def test_a_request_without_an_origin_is_answered_as_ever(across: Server) -> None:
    answer = ask(across, request("Host: localhost"))
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("line", ["GET /livez", "HEAD /livez", "GET /none", "GET /tensors"])
def test_a_cache_is_told_that_the_answer_to_a_page_is_another(across: Server, line: str) -> None:
    with Wire(across) as wire:
        wire.send(request("Host: localhost", line=f"{line} HTTP/1.1"))
        assert wire.read(head=line.startswith("HEAD")).headers["vary"] == "Origin"


def test_a_page_sends_a_large_body_and_reads_a_large_answer(across: Server) -> None:
    values = ",".join(["1"] * 300_000)
    body = (
        f'{{"data":{{"dtype":"int32","shape":[300000],"values":[{values}]}},'
        f'"indices":{{"dtype":"int64","shape":[300000,1],"values":[{values}]}}}}'
    ).encode()
    head = f"POST /gathernd HTTP/1.1\r\nHost: localhost\r\nOrigin: {PAGE}\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = ask(across, head.encode() + body)
    assert answer.status == 200
    assert answer.json()["output"]["values"] == [1] * 300_000
    assert answer.headers["access-control-allow-origin"] == PAGE


def test_a_page_that_will_not_wait_for_its_own_body_is_told_so(across: Server) -> None:
    fields = ("Host: localhost", f"Origin: {PAGE}", "X-Gathernd-Timeout: 0.2")
    with Wire(across) as wire:
        wire.send(request(*fields)[:-1])
        answer = wire.read()
    assert (answer.status, answer.json()["code"]) == (503, "deadline_exceeded")
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "X-Request-ID" in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize("line", ["POST /gathernd", "POST /gather", "GET /tensors"])
def test_the_bytes_of_a_page_are_counted(across: Server, line: str) -> None:
    names = ("gathernd_received_bytes_total", "gathernd_sent_bytes_total")
    data = request("Host: localhost", f"Origin: {PAGE}", line=f"{line} HTTP/1.1")
    ask(across, data)  # from now on the metrics have all their lines
    before = [metric(across, name) for name in names]
    between = [metric(across, name) for name in names]
    answer = ask(across, data)
    asked = [second - first for first, second in zip(before, between, strict=True)]
    found = [metric(across, name) - first - more for name, first, more in zip(names, between, asked, strict=True)]
    assert found[0] == len(data.partition(b"\r\n\r\n")[2])
    assert found[1] == pytest.approx(len(answer.body), abs=100)  # the metrics themselves are some digits longer


def test_work_of_a_page_that_has_gone_is_dropped_from_the_queue(start: Start) -> None:
    flags = ("--threads", "1", "--max-queue", "1", "--loop-max-us", "0", "--queue-timeout", "100")
    with start(*flags, "--cors-origins", PAGE, command=faulty("held")) as server, Wire(server) as first:
        with held(server):
            first.send(request("Host: localhost"))
            wait_for_queue(server, 1)
            with Wire(server) as second:
                second.send(request("Host: localhost", f"Origin: {PAGE}"))
                wait_for_queue(server, 2)
            wait_for_queue(server, 1)  # while the first one still runs
            until(lambda: metric(server, 'gathernd_errors_total{code="client_gone"}') == 1)
        assert first.read().status == 200


def test_a_browser_that_asks_for_too_much_is_refused_in_the_one_shape(across: Server) -> None:
    fields = ["Host: localhost", f"Origin: {PAGE}", "Access-Control-Request-Method: PATCH"]
    answer = ask(across, request(*fields, line="OPTIONS /gathernd HTTP/1.1"))
    assert (answer.status, answer.json()["code"]) == (403, "forbidden")
