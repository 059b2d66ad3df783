"""The parser of answers on well-formed and hostile bytes, however they are cut into reads."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gathernd import errors
from gathernd._http1_messages import MAX_ERROR_BYTES, MAX_HEADER_BYTES, AnswerParser, request_header
from gathernd._messages import Answer, Request
from tests.for_each import for_each

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def request(method: str = "POST", **more: Any) -> Request[None]:
    return Request(method, "/gathernd", lambda _: None, **more)


def parse(sent: bytes, piece: int = 1 << 20, method: str = "POST", **more: Any) -> tuple[Answer | None, AnswerParser]:
    """The answer to a request whose connection gives `sent` in reads of at most `piece` bytes."""
    parser = AnswerParser(64)
    parser.start(request(method, **more))
    at = 0
    while at < len(sent):
        buffer = parser.buffer()
        count = min(len(buffer), piece, len(sent) - at)
        buffer[:count] = sent[at : at + count]
        at += count
        if parser.received(count):
            parser.reusable = parser.reusable and at == len(sent)
            return parser.answer, parser
    return None, parser


@for_each("piece", [1, 7, 1 << 20])
@for_each(
    ("sent", "status", "body"),
    [
        (OK, 200, b"hello"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304\r\nContent-Length: 9\r\n\r\n", 304, b""),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + OK, 200, b"hello"),
        (CHUNKED + b"5\r\nhello\r\n0\r\n\r\n", 200, b"hello"),
        (CHUNKED + b"2;a=b\r\nhe\r\n003 \r\nllo\r\n0\r\nX-Sum: 1\r\n\r\n", 200, b"hello"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 3000 + b"\r\nContent-Length: 5\r\n\r\nhello", 200, b"hello"),
    ],
)
def test_an_answer_is_read_however_it_is_cut(sent: bytes, status: int, body: bytes, piece: int) -> None:
    answer, parser = parse(sent, piece)
    assert answer is not None
    assert (answer.status, bytes(answer.body), parser.reusable) == (status, body, True)


def test_names_are_in_lower_case_and_fields_of_several_lines_are_one_list() -> None:
    answer, _ = parse(b'HTTP/1.1 200 OK\r\nVia: a\r\nETag:\t"x" \r\nVIA:\tb\r\nContent-Length: 0\r\n\r\n')
    assert answer is not None
    assert answer.headers == {"via": "a, b", "etag": '"x"', "content-length": "0"}


def test_an_answer_to_head_has_no_body() -> None:
    answer, parser = parse(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", method="HEAD")
    assert answer is not None
    assert (bytes(answer.body), parser.reusable) == (b"", True)


@for_each(
    "sent",
    [
        OK + OK,
        OK + b"!",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nConnection: keep-alive, Close\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
        CHUNKED + b"5\r\nhello\r\n0\r\n\r\n" + OK,
    ],
)
def test_a_connection_that_is_not_clean_is_not_used_again(sent: bytes) -> None:
    answer, parser = parse(sent)
    assert answer is not None
    assert not parser.reusable


@for_each("piece", [1, 1 << 20])
@for_each(
    "sent",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 99 Low\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 5\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n folded\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX: a\0b\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nX: a\rContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + OK,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 9 + OK,
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nhello",
        b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n" % (MAX_ERROR_BYTES + 1),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"five\r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"5\r\nhello!\r\n0\r\n\r\n",
        CHUNKED + b"5\r\nhello\n0\r\n\r\n",
        CHUNKED + b"7fffffffffffffff\r\nhello",
        CHUNKED + b"5;" + b"x" * 5000 + b"\r\nhello\r\n0\r\n\r\n",
        CHUNKED + b"0\r\n" + b"X: y\r\n" * (MAX_HEADER_BYTES // 4 + 1) + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * MAX_HEADER_BYTES,
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(sent: bytes, piece: int) -> None:
    if piece == 1 and len(sent) > 10_000:
        piece = 1000
    with pytest.raises(errors.UnexpectedAnswer):
        parse(sent, piece)


@for_each("end", [0, 1, 10, len(OK) - 1])
def test_an_answer_that_is_cut_off_is_not_complete(end: int) -> None:
    answer, parser = parse(OK[:end])
    assert answer is None
    assert parser.begun == (end > 0)
    assert len(parser.buffer())
    for cut in range(len(CHUNKED), len(CHUNKED) + 14):
        assert parse((CHUNKED + b"5\r\nhello\r\n0\r\n\r\n")[:cut])[0] is None


def test_a_body_goes_where_the_request_wants_it() -> None:
    memory = bytearray(5)
    asked: list[tuple[int, str]] = []

    def receive_into(status: int, headers: Any) -> memoryview:
        asked.append((status, headers["content-length"]))
        return memoryview(memory)

    for piece in (1, 1 << 20):
        answer, _ = parse(OK, piece, receive_into=receive_into)
        assert answer is not None
        assert answer.body.obj is memory
        assert memory == b"hello"
        memory[:] = bytes(5)
    assert asked == [(200, "5")] * 2


def test_progress_of_a_download_rises_to_its_length() -> None:
    told: list[int] = []
    parse(OK, 20, "GET", progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 5
    parse(OK, 20, "POST", progress=told.append)
    assert len(told) == len(set(told))


def test_a_request_has_one_line_for_each_field_and_a_length() -> None:
    made = request(
        query={"tensor": "a b&c", "shape": "2,3"}, headers={"accept": "x/y"}, body=(b"ab", memoryview(b"cde"))
    )
    header = request_header(made, "/base", b"host: h\r\n", {"x-request-id": "7"})
    assert header == (
        b"POST /base/gathernd?tensor=a%20b%26c&shape=2,3 HTTP/1.1\r\nhost: h\r\naccept: x/y\r\nx-request-id: 7\r\n"
        b"content-length: 5\r\n\r\n"
    )
    assert re.search(b"content-length: 0\r\n", request_header(request(), "", b"", {}))
    assert b"content-length" not in request_header(request("GET"), "", b"", {})


@for_each(("name", "value"), [("x y", "a"), ("", "a"), ("x", "a\r\nb: c"), ("x", "a\0"), ("x:", "a")])
def test_no_field_smuggles_another(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="not a valid header field"):
        request_header(request(), "", b"", {name: value})
    with pytest.raises(ValueError, match="not a valid header field"):
        request_header(request(headers={name: value}), "", b"", {})
