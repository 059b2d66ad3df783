"""The log of a real server: every line of one form, a line for each request refused, and nothing of what was sent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from app.security import api_keys
from tests.http.conftest import Start
from tests.http.faulty_app import SECRET
from tests.http.held import faulty, until
from tests.http.raw import TINY, Wire, request
from tests.http.server import Server

PAYLOAD = "a-value-of-a-payload"
TRACE = "0af7651916cd43dd8448eb211c80319c"
Line = dict[str, Any]


def lines(server: Server) -> list[Line]:
    """The log, each line of which must be JSON with the fields that every line has."""
    found = [json.loads(text) for text in server.log_text().splitlines()]
    for line in found:
        assert {"time", "level", "logger", "message", "process"} <= set(line), line
    return found


def about(server: Server, request_id: str, count: int = 1) -> list[Line]:
    """The lines with this id, once there are so many."""

    def found() -> list[Line]:
        return [line for line in lines(server) if line.get("request_id") == request_id]

    until(lambda: len(found()) >= count)
    return found()


@pytest.fixture(scope="module", params=["1", pytest.param("2", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, start: Start) -> Iterator[Server]:
    with start("--log-format", "json", "--log-rate", "10000", "--workers", request.param) as running:
        yield running
        log = running.log_text()
    ended = [json.loads(text) for text in running.log.read_text().splitlines()]
    assert len(ended) > len(log.splitlines())
    assert PAYLOAD not in running.log.read_text()


REFUSED: list[tuple[str, bytes, int, str]] = [
    ("not-json", request(b"{" + PAYLOAD.encode()), 400, "malformed_request"),
    ("field", request(b'{"%b": 1}' % PAYLOAD.encode()), 422, "invalid_field"),
    ("value", request(TINY.replace(b"7,8", b'"%b",8' % PAYLOAD.encode())), 422, "value_not_representable"),
    ("query", request(TINY, line=f"POST /gathernd?key={PAYLOAD} HTTP/1.1"), 422, "invalid_field"),
    ("type", request(TINY, f"Content-Type: {PAYLOAD}"), 415, "unsupported_media_type"),
    ("host", request(TINY).replace(b"localhost", PAYLOAD.encode()), 403, "forbidden"),
    ("path", request(b"", line="GET /no/such/place HTTP/1.1"), 404, "not_found"),
    ("tensor", request(b"", line="GET /tensors/none HTTP/1.1"), 404, "tensor_not_found"),
    ("method", request(b"", line="DELETE /gathernd HTTP/1.1"), 405, "method_not_allowed"),
    ("header", request(TINY, "X-A: " + PAYLOAD * 5000), 431, "header_too_large"),
]


@pytest.mark.parametrize(("name", "sent", "status", "code"), REFUSED)
def test_a_refused_request_gets_one_line_without_what_was_sent(
    server: Server, name: str, sent: bytes, status: int, code: str
) -> None:
    mark = f"{name}-{id(server)}"
    fields = f"Host: localhost\r\nX-Request-ID: {mark}\r\ntraceparent: 00-{TRACE}-b7ad6b7169203331-01\r\n"
    with Wire(server) as wire:
        first, rest = sent.split(b"\r\n", 1)
        host, rest = rest.split(b"\r\n", 1)
        wire.send(first + b"\r\n" + fields.replace("Host: localhost", host.decode()).encode() + rest)
        answer = wire.read()
    assert (answer.status, answer.json()["code"]) == (status, code)
    assert answer.headers["x-request-id"] == mark
    (line,) = about(server, mark)
    assert (line["status"], line["code"], line["client"]) == (status, code, "127.0.0.1")
    assert line["message"] == "request refused"
    if name != "header":
        assert line["trace_id"] == TRACE
        assert line["milliseconds"] > 0
        assert "?" not in line["path"]
        assert line["route"] == ("other" if name == "path" else line["route"])
    assert PAYLOAD not in server.log_text()


def test_a_request_that_is_answered_gets_no_line(server: Server) -> None:
    before = len(lines(server))
    assert server.shared_client().post("/gathernd", content=TINY, headers={"x-request-id": "fine"}).status_code == 200
    assert server.shared_client().get("/livez").status_code == 200
    sleep(0.1)
    assert len(lines(server)) == before


@pytest.mark.parametrize(
    "sent",
    [
        "/%0AINFO gathernd: forged",
        "/%0d%0a%7b%22level%22:%22error%22%7d",
        "/%1b[2J",
        "/%00",
        "/%e2%80%a8x",
        "/%ff%fe",
        '/"}x',
        "/" + "a" * 30_000,
    ],
)
def test_no_path_can_forge_a_line(server: Server, sent: str) -> None:
    mark = f"forged-{abs(hash(sent))}"
    with Wire(server) as wire:
        wire.send(request(b"", f"X-Request-ID: {mark}", line=f"GET {sent.replace(' ', '%20')} HTTP/1.1"))
        assert wire.read().status == 404
    (line,) = about(server, mark)
    assert line["level"] == "info"
    assert len(line["path"]) <= 256


@pytest.mark.parametrize("given", ["a\x01b", "a b", "<x>", '"', "\xe9", "x" * 129, "%0a", "{}"])
def test_an_id_that_is_none_is_replaced_and_not_logged(server: Server, given: str) -> None:
    with Wire(server) as wire:
        wire.send(
            request(b"{", "X-Request-ID: ").replace(b"X-Request-ID: ", b"X-Request-ID: " + given.encode("latin-1"))
        )
        answer = wire.read()
    assert answer.headers["x-request-id"] != given
    if answer.json()["detail"].startswith("this is not a valid HTTP"):
        return
    (line,) = about(server, answer.headers["x-request-id"])
    assert line["code"] == "malformed_request"


def test_a_request_that_is_no_http_gets_a_line_with_the_id_it_was_told(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(f"{PAYLOAD}\r\n\r\n".encode())
        answer = wire.read()
    (line,) = about(server, answer.headers["x-request-id"])
    assert (line["status"], line["code"], line["route"]) == (400, "malformed_request", "unread")


def test_a_client_that_goes_away_gets_a_line(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(request(TINY, "X-Request-ID: gone")[:-5])
        sleep(0.1)
    (line,) = about(server, "gone")
    assert (line["status"], line["code"], line["message"]) == (0, "client_gone", "client gone")


def test_a_flood_of_nonsense_does_not_fill_the_log(start: Start) -> None:
    with start("--log-format", "json", "--log-rate", "5") as server:
        client = server.shared_client()
        for _ in range(60):
            assert client.post("/gathernd", content=b"{").status_code == 400
        summary = "requests refused and not logged one by one"

        def told(line: Line) -> int:
            return int(line["requests"]) if line["message"] == summary else line["message"] == "request refused"

        until(lambda: sum(map(told, lines(server))) >= 60)
        sleep(1.2)
        found = lines(server)
        assert sum(map(told, found)) == 60
        counts = Counter(line["message"] for line in found)
        assert counts["request refused"] <= 5 * (counts[summary] + 1)
        assert counts[summary] > 0


def test_an_access_log_has_a_line_for_each_request(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    key = api_keys.add(file, "caller", ["gather"])
    with start("--log-format", "json", "--access-log", "--api-keys-file", str(file)) as server:
        client = server.client(headers={"authorization": f"Bearer {key}"})
        with client:
            for number in range(5):
                sent = {"x-request-id": f"access-{number}"}
                assert client.post("/gathernd", content=TINY, headers=sent).status_code == 200
            assert (
                client.post("/gathernd?token=hidden", content=TINY, headers={"x-request-id": "bad"}).status_code == 422
            )
        for number in range(5):
            (line,) = about(server, f"access-{number}")
            assert (line["status"], line["route"], line["message"]) == (200, "/gathernd", "request answered")
            assert line["key"] == "caller"
        (line,) = about(server, "bad")
        assert (line["code"], line["key"]) == ("invalid_field", "caller")
        api_keys.remove(file, "caller")
        until(lambda: "0 keys in force" in server.log_text())
        with server.client(headers={"authorization": f"Bearer {key}", "x-request-id": "late"}) as refused:
            assert refused.post("/gathernd", content=TINY).status_code == 401
        (line,) = about(server, "late")
        assert "key" not in line, "a key that is not in force has no label"
        for secret in (key, "hidden", "Bearer"):
            assert secret not in server.log_text()


SCATTER = b'{"indices":{"dtype":"int64","values":[[0]]},"updates":{"dtype":"uint8","values":[9]}}'


def test_each_change_has_one_line_that_says_what_and_by_whom(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    key = api_keys.add(file, "owner", ["gather", "tensors"])
    source = tmp_path / "source.npy"
    np.save(source, np.arange(4))
    flags = ("--log-format", "json", "--api-keys-file", str(file), "--import-from", f"file://{tmp_path}")
    with start(*flags) as server, server.client(headers={"authorization": f"Bearer {key}"}) as client:
        raw = {"content-type": "application/octet-stream"}
        upload = "/tensors/items?dtype=uint8&shape=4&keep=2"
        said = "run 7, commit 9f31"
        asked: list[tuple[str, str, str, bytes, dict[str, str], dict[str, Any]]] = [
            ("first", "PUT", upload, b"abcd", raw, {"name": "items", "version": 1, "bytes": 4}),
            ("second", "PUT", f"{upload}&note={quote(said)}", b"efgh", raw,
             {"name": "items", "version": 2, "bytes": 4, "note": said}),
            ("made", "PUT", "/aliases/now", b'{"tensor":"items@1"}', {}, {"name": "now", "tensor": "items@1"}),
            ("moved", "PUT", "/aliases/now", b'{"tensor":"items@2"}', {}, {"name": "now", "tensor": "items@2"}),
            ("many", "PUT", "/aliases", b'{"aliases":{"now":"items@2"}}', {}, {"name": "now", "tensor": "items@2"}),
            ("scatter", "POST", "/tensors/items/scatter", SCATTER, {"idempotency-key": "once"},
             {"name": "items", "version": 2, "bytes": len(SCATTER)}),
            ("old", "DELETE", "/tensors/items@1", b"", {}, {"name": "items", "version": 1}),
            ("unmade", "DELETE", "/aliases/now", b"", {}, {"name": "now"}),
            ("import", "POST", "/tensors/copied/import",
             json.dumps({"url": f"file://{source}", "note": said}).encode(), {},
             {"name": "copied", "version": 1, "bytes": 32, "url": f"file://{source}", "note": said}),
            ("all", "DELETE", "/tensors/items", b"", {}, {"name": "items"}),
        ]  # fmt: skip
        messages = []
        for mark, method, path, body, headers, wanted in asked:
            answer = client.request(method, path, content=body, headers={"x-request-id": mark, **headers})
            assert answer.status_code < 300, answer.text
            (line,) = about(server, mark)
            assert line["logger"] == "gathernd.changes"
            assert line["level"] == "info"
            assert (line["key"], line["client"]) == ("owner", "127.0.0.1")
            assert {name: line.get(name) for name in ("name", "version", "bytes", "tensor", "url", "note")} == {
                name: wanted.get(name) for name in ("name", "version", "bytes", "tensor", "url", "note")
            }
            messages.append(line["message"])
        assert messages == [
            "tensor uploaded", "tensor uploaded", "alias made", "alias moved", "alias moved", "tensor scattered",
            "tensor removed", "alias removed", "import done", "tensor removed",
        ]  # fmt: skip
        assert client.put(upload, content=b"abcd", headers={**raw, "x-request-id": "later"}).is_success
        two = {"aliases": {"one": "items@3", "two": "items@3"}}
        assert client.put("/aliases", json=two, headers={"x-request-id": "two"}).is_success
        assert [(line["message"], line["name"], line["tensor"]) for line in about(server, "two", 2)] == [
            ("alias made", "one", "items@3"), ("alias made", "two", "items@3"),
        ]  # fmt: skip
        sent = {"x-request-id": "again", "idempotency-key": "once"}
        assert client.post("/tensors/items/scatter", content=SCATTER, headers=sent).status_code == 200
        assert client.get("/tensors", headers={"x-request-id": "list"}).status_code == 200
        refused = {"x-request-id": "refused", "if-match": '"other"', **raw}
        assert client.put(upload, content=b"abcd", headers=refused).status_code == 412
        assert [line["logger"] for line in about(server, "refused")] == ["gathernd.requests"]
        api_keys.add(file, "guest", ["gather"])
        until(lambda: "2 keys in force" in server.log_text())
        (line,) = [line for line in lines(server) if line["message"] == "keys file: 2 keys in force"]
        assert (line["added"], line["removed"]) == (["guest"], [])
        assert {line.get("request_id") for line in lines(server)}.isdisjoint({"again", "list"})
        assert key not in server.log_text()


def test_many_scatters_have_few_lines_and_are_all_counted(start: Start) -> None:
    with start("--log-format", "json") as server:
        client = server.shared_client()
        upload = "/tensors/busy?dtype=uint8&shape=4"
        raw = {"content-type": "application/octet-stream"}
        assert client.put(upload, content=b"abcd", headers=raw).status_code == 201
        begun = monotonic()
        for _ in range(60):
            assert client.post("/tensors/busy/scatter", content=SCATTER).status_code == 200

        def counted() -> tuple[int, int]:
            found = [line for line in lines(server) if line["message"] == "tensor scattered"]
            return len(found), sum(("request_id" in line) + line.get("left_out", 0) for line in found)

        until(lambda: counted()[1] == 60)
        assert counted()[0] <= 2 + monotonic() - begun


def test_text_lines_carry_the_same_fields(start: Start) -> None:
    with start() as server:
        sent = {"x-request-id": "one", "traceparent": f"00-{TRACE}-b7ad6b7169203331-01"}
        assert server.shared_client().post("/gathernd", content=b"{", headers=sent).status_code == 400
        until(lambda: "request_id=one" in server.log_text())
        line = next(line for line in server.log_text().splitlines() if "request_id=one" in line)
        assert " INFO gathernd.requests: request refused method=POST route=/gathernd path=/gathernd status=400 " in line
        assert f" trace_id={TRACE} " in line


def test_a_failure_is_told_with_its_traceback_and_no_folder(start: Start) -> None:
    with start("--log-format", "json", command=faulty("broken"), tracebacks=True) as server:
        assert server.shared_client().post("/gathernd", content=TINY, headers={"x-request-id": "f"}).status_code == 500
        until(lambda: len(about(server, "f")) == 2)
        failure, outcome = about(server, "f")
        assert failure["level"] == outcome["level"] == "error"
        assert outcome["code"] == "internal"
        assert failure["traceback"][-1] == f"RuntimeError: {SECRET}"
        assert any(place.startswith("app.services.gathers:Gathers.") for place in failure["traceback"])
        assert ".py" not in " ".join(failure["traceback"])
        assert str(Path(__file__).parents[2]) not in server.log_text()
