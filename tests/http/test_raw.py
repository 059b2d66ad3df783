"""What only a raw connection can send: broken framing, oversized headers, pipelines, early ends, repeated fields."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from time import sleep
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save

from tests.for_each import for_each
from tests.http.conftest import Start
from tests.http.raw import TINY, Wire, ask, request
from tests.http.server import Server
from tests.http.tensors import put_raw

FIXED = b"POST /gathernd HTTP/1.1\r\nHost: localhost\r\n"


def chunked(*pieces: bytes, trailer: bytes = b"") -> bytes:
    parts = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
    return FIXED + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(parts) + b"0\r\n" + trailer + b"\r\n"


BAD_FRAMING = {
    "no HTTP at all": b"hello\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "a preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "an unknown method": b"GATHER /gathernd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an unknown version": b"GET / HTTP/7.7\r\nHost: localhost\r\n\r\n",
    "a space in the path": b"GET /a b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a field without a colon": FIXED + b"nonsense\r\n\r\n",
    "a space before the colon": FIXED + b"Content-Length : 0\r\n\r\n",
    "a control character in a field": FIXED + b"X-A: a\x00b\r\n\r\n",
    "a folded field": FIXED + b"X-A: a\r\n b\r\nContent-Length: 0\r\n\r\nx",
    "a length that is no number": FIXED + b"Content-Length: ten\r\n\r\n",
    "a negative length": FIXED + b"Content-Length: -1\r\n\r\n",
    "a length with a sign": FIXED + b"Content-Length: +5\r\n\r\n12345",
    "a length in hexadecimal": FIXED + b"Content-Length: 0x10\r\n\r\n" + b" " * 16,
    "a length beyond 64 bits": FIXED + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "two lengths that differ": FIXED + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n12",
    "two lengths that agree": FIXED + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
    "two lengths in one field": FIXED + b"Content-Length: 2, 2\r\n\r\n{}",
    "length and chunks": FIXED + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": FIXED + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "chunks twice": FIXED + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown transfer encoding": FIXED + b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
    "chunked is not last": FIXED + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "a coding before chunked": FIXED + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding before chunked in capitals": FIXED + b"TRANSFER-ENCODING: GZIP, CHUNKED\r\n\r\n0\r\n\r\n",
    "a coding before chunked in a field of its own": (
        FIXED + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "identity": FIXED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "chunked twice in one field": FIXED + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "an empty coding before chunked": FIXED + b"Transfer-Encoding: , chunked\r\n\r\n0\r\n\r\n",
    "no coding": FIXED + b"Transfer-Encoding:\r\n\r\n",
    "an empty field before chunked": (FIXED + b"Transfer-Encoding: \r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    "chunked with a parameter": FIXED + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "chunked in quotes": FIXED + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "chunked behind a vertical tab": FIXED + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a coding of HTTP/1.0": FIXED.replace(b"1.1", b"1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding with an upgrade": (
        FIXED + b"Upgrade: h2c\r\nConnection: Upgrade\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"
    ),
    "a chunk size that is no number": FIXED + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a negative chunk": FIXED + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    "a huge chunk": FIXED + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "a chunk longer than it says": FIXED + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}{}\r\n0\r\n\r\n",
}


@for_each("name", BAD_FRAMING)
def test_broken_framing_is_malformed_and_ends_the_connection(server: Server, name: str) -> None:
    with Wire(server) as wire:
        wire.send(BAD_FRAMING[name])
        answer = wire.read()
        assert (answer.status, answer.json()["code"]) == (400, "malformed_request"), answer
        assert answer.headers["connection"] == "close" or name == "two lengths that agree"
        if "connection" in answer.headers:
            assert wire.closed()


@pytest.fixture(scope="module")
def narrow(start: Start) -> Iterator[Server]:
    with start("--max-header-bytes", "4KiB", "--max-header-fields", "20") as server:
        yield server


def test_a_header_may_be_as_large_as_the_limit(narrow: Server) -> None:
    assert ask(narrow, request(TINY, "X-A: " + "a" * 3900)).status == 200


@for_each("size", [4200, 1_000_000])
@for_each("where", ["field", "name", "url", "many fields"])
def test_a_header_of_too_many_bytes_is_refused(narrow: Server, size: int, where: str) -> None:
    data = {
        "field": request(TINY, "X-A: " + "a" * size),
        "name": request(TINY, "X" * size + ": a"),
        "url": request(TINY, line=f"POST /{'a' * size} HTTP/1.1"),
        "many fields": request(TINY, *["X-A: " + "a" * 100] * (size // 100)),
    }[where]
    with Wire(narrow) as wire:
        try:
            wire.send(data)
        except ConnectionError:  # it need not read all of it
            assert size > 10_000
        answer = wire.read()
        assert (answer.status, answer.json()["code"]) == (431, "header_too_large")
        assert answer.headers["connection"] == "close"
        assert answer.json()["limit"] in ("header_bytes", "header_fields")


def test_a_header_that_never_ends_is_refused_at_the_limit(narrow: Server) -> None:
    with Wire(narrow) as wire:
        wire.send(FIXED + b"X-A: ")
        for _ in range(50):
            sleep(0.005)
            try:
                wire.send(b"a" * 100)
            except ConnectionError:
                break
        assert wire.read().json()["code"] == "header_too_large"


@pytest.mark.parametrize("coding", ["gzip, chunked", "x, chunked", "GZIP, chunked"])
def test_a_body_in_a_coding_that_is_not_undone_is_never_taken(server: Server, coding: str) -> None:
    line = "PUT /tensors/coded?dtype=int8&shape=2 HTTP/1.1"
    fields = ("Content-Type: application/octet-stream", f"Transfer-Encoding: {coding}")
    answer = ask(server, request(b"2\r\n{}\r\n0\r\n\r\n", *fields, line=line, length=False))
    assert (answer.status, answer.json()["code"]) == (400, "malformed_request")
    assert "chunked" in answer.json()["hint"]
    assert "Content-Encoding" in answer.json()["hint"]
    assert server.shared_client().get("/tensors/coded").status_code == 404


@pytest.mark.parametrize("coding", ["chunked", "Chunked", "CHUNKED", "  chunked"])
def test_chunked_has_no_case(server: Server, coding: str) -> None:
    sent = chunked(TINY).replace(b" chunked", f" {coding}".encode())
    assert ask(server, sent).status == 200


@pytest.mark.parametrize("sizes", [[10**6], [1], [7, 1, 1000], [65536]])
def test_a_chunked_body_is_read(server: Server, sizes: list[int]) -> None:
    pieces, place, turn = [], 0, 0
    while place < len(TINY):
        size = sizes[turn % len(sizes)]
        pieces.append(TINY[place : place + size])
        place, turn = place + size, turn + 1
    assert ask(server, chunked(*pieces)).status == 200
    assert ask(server, chunked(*pieces, trailer=b"X-Checksum: 1\r\n")).status == 200


@pytest.mark.parametrize("pieces", [1, 2])
def test_the_fields_of_a_trailer_are_no_part_of_the_header(server: Server, pieces: int) -> None:
    trailer = (
        b"X-Request-ID: trailer\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n"
    )
    data = chunked(TINY, trailer=trailer).replace(b"\r\n", b"\r\nX-Request-ID: header\r\n", 1)
    with Wire(server) as wire:
        for _ in range(2):
            middle = data.index(b"\r\n0\r\n")
            for piece in [data] if pieces == 1 else [data[:middle], data[middle:]]:
                wire.send(piece)
            answer = wire.read()
            assert (answer.status, answer.headers["x-request-id"]) == (200, "header")


@pytest.mark.parametrize("kind", ["fields", "one field", "an extension"])
def test_chunks_that_bring_no_body_are_refused_at_the_limit(narrow: Server, kind: str) -> None:
    begin, more = {
        "fields": (b"2\r\n{}\r\n0\r\n", b"X-A: b\r\n" * 100),
        "one field": (b"2\r\n{}\r\n0\r\nX-A: ", b"a" * 800),
        "an extension": (b"2\r\n{}\r\n1;", b"a" * 800),
    }[kind]
    with Wire(narrow) as wire:
        wire.send(FIXED + b"Transfer-Encoding: chunked\r\n\r\n" + begin)
        for _ in range(100):
            sleep(0.005)
            try:
                wire.send(more)
            except ConnectionError:
                break
        answer = wire.read()
        assert (answer.status, answer.json()["code"]) == (431, "header_too_large")
        assert wire.closed()


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    large = TINY + b" " * 200_000
    sent = [
        request(large if number % 7 == 3 else TINY if number % 5 else b"{", f"X-Request-ID: n{number}")
        for number in range(30)
    ]
    with Wire(server) as wire:
        wire.send(b"".join(sent))
        answers = [wire.read() for _ in sent]
    assert [answer.headers["x-request-id"] for answer in answers] == [f"n{number}" for number in range(30)]
    expected = [200 if number % 7 == 3 or number % 5 else 400 for number in range(30)]
    assert [answer.status for answer in answers] == expected


def large_request(*fields: str) -> bytes:
    """A request of 65 KB whose answer of 1 MB is made in a thread."""
    arrays: dict[str, NDArray[Any]] = {
        "data": np.zeros((1, 1 << 14), np.float32),
        "indices": np.zeros((16, 1), np.int64),
    }
    return request(save(arrays), "Content-Type: application/x-safetensors", *fields)


@pytest.mark.parametrize("half_closed", [False, True])
@pytest.mark.parametrize(
    "end", [b"garbage\r\n\r\n", FIXED + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", FIXED + b"X-Fi"]
)
def test_what_came_whole_is_answered_before_what_never_will_be(server: Server, end: bytes, half_closed: bool) -> None:
    behind = [request(TINY, "X-Request-ID: second"), large_request("X-Request-ID: third")]
    for _ in range(5):
        with Wire(server) as wire:
            wire.send(large_request("X-Request-ID: first") + b"".join(behind) + end)
            if half_closed:
                wire.socket.shutdown(socket.SHUT_WR)
            for name in ("first", "second", "third"):
                answer = wire.read()
                assert (answer.status, answer.headers["x-request-id"]) == (200, name)
            if end != FIXED + b"X-Fi":
                assert wire.read().json()["code"] == "malformed_request"
            if half_closed or end != FIXED + b"X-Fi":
                assert wire.closed()


def test_garbage_behind_a_request_leaves_time_to_read_its_answer(server: Server) -> None:
    """More than what buffers between hold, read after the server has looked at all connections."""
    items = np.arange(2 << 20)
    assert put_raw(server.shared_client(), "slowly-read", items).is_success
    with Wire(server) as wire:
        wire.send(request(b"", line="GET /tensors/slowly-read/content HTTP/1.1", length=False) + b"garbage\r\n\r\n")
        sleep(2.5)
        answer = wire.read()
        same = answer.body == items.tobytes()
        assert (answer.status, len(answer.body), same) == (200, items.nbytes, True)
        assert wire.read().json()["code"] == "malformed_request"
        assert wire.closed()


def test_empty_lines_before_a_request_are_skipped(server: Server) -> None:
    assert ask(server, b"\r\n\r\n" + request(TINY)).status == 200


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "nonsense"])
def test_an_upgrade_is_not_taken_and_the_connection_goes_on(server: Server, upgrade: str) -> None:
    fields = ["Connection: Upgrade, HTTP2-Settings", f"Upgrade: {upgrade}", "HTTP2-Settings: AAEAAEAAAAIAAAAA"]
    with Wire(server) as wire:
        for number in range(3):
            wire.send(request(TINY, *fields, f"X-Request-ID: n{number}"))
            answer = wire.read()
            assert (answer.status, answer.headers["x-request-id"]) == (200, f"n{number}")
            wire.send(request(b"", *fields, line="GET /livez HTTP/1.1", length=False))
            assert wire.read().status == 200
        wire.send(request(TINY))
        assert wire.read().status == 200


def test_http_1_0_is_answered_and_the_connection_closed(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(b"POST /gathernd HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(TINY) + TINY)
        assert wire.read().status == 200
        assert wire.closed()


def test_connection_close_is_honoured(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(request(TINY, "Connection: close"))
        answer = wire.read()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert wire.closed()


@pytest.mark.parametrize(
    "line", ["GET http://localhost/livez HTTP/1.1", "GET /livez?x=1&y=%zz HTTP/1.1", "GET /%6civez HTTP/1.1"]
)
def test_other_forms_of_a_target_are_understood(server: Server, line: str) -> None:
    assert ask(server, request(b"", line=line, length=False)).status == 200


@pytest.mark.parametrize(
    "target",
    ["/\xe9", "livez", "http://", "http://[::1", "http://localhost/\xe9", "http://localhost:99999/", "/a%00b"],
)
def test_a_target_of_no_form_is_an_error_of_the_one_shape(server: Server, target: str) -> None:
    answer = ask(server, request(b"", line=f"OPTIONS {target} HTTP/1.1", length=False))
    if target == "/a%00b":
        assert (answer.status, answer.json()["code"]) == (404, "not_found")
    else:
        assert (answer.status, answer.json()["code"]) == (400, "malformed_request")
        assert "target" in answer.json()["detail"] or "url" in answer.json()["detail"].lower()


def test_a_head_request_leaves_the_connection_in_step(server: Server) -> None:
    with Wire(server) as wire:
        for path, status in (("/gathernd", 405), ("/nowhere", 404), ("/livez", 200), ("/docs/swagger-ui.css", 200)):
            wire.send(request(b"", line=f"HEAD {path} HTTP/1.1", length=False))
            assert wire.read(head=True).status == status
            wire.send(request(TINY))
            assert wire.read().status == 200


def test_continue_is_said_before_the_body_is_sent(server: Server) -> None:
    with Wire(server) as wire:
        wire.send(request(TINY, "Expect: 100-continue")[: -len(TINY)])
        assert wire.read().status == 100
        wire.send(TINY)
        assert wire.read().status == 200


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (("Content-Type: text/plain",), 415),
        (("Content-Length: 999999999999",), 413),
        (("Origin: http://example.com",), 403),
    ],
)
def test_a_refusal_comes_instead_of_continue(server: Server, fields: tuple[str, ...], status: int) -> None:
    length = not fields[0].startswith("Content-Length")
    with Wire(server) as wire:
        head = request(TINY, "Expect: 100-continue", *fields, length=length)[: -len(TINY)]
        wire.send(head)
        answer = wire.read()
        assert answer.status == status
        assert answer.headers["connection"] == "close"
        assert wire.closed()


@pytest.mark.parametrize("sent", [1, 10, 30, len(request(TINY)) - 1])
def test_a_client_that_leaves_early_harms_nobody(server: Server, sent: int) -> None:
    for _ in range(20):
        with Wire(server) as wire:
            wire.send(request(TINY)[:sent])
    for _ in range(20):
        with Wire(server) as wire:
            wire.send(request(TINY))  # and does not wait for the answer
    assert ask(server, request(TINY)).status == 200
