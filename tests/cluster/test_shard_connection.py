"""A connection to a shard takes answers in pieces of any size, and refuses every other one without touching more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.cluster.router.range_requests import as_rows
from app.cluster.router.row_sinks import RowSink, WholeBody, WholeTensors
from app.cluster.router.sequences import etag_check
from app.cluster.router.shard_connection import BUFFER_BYTES, Failure, ShardConnection
from app.formats.safetensors.header import write_header
from app.tensors.dtypes import DTYPES
from tests.for_each import for_each
from tests.told_memory import ToldMemory

FLOAT = DTYPES["float32"]
ETAG = '"abc-0"'


class Pipe(asyncio.Transport):
    """The other side of a connection: keeps what is sent, and hands over what is to come."""

    def __init__(self, connection: ShardConnection) -> None:
        super().__init__()
        self.connection = connection
        self.sent = b""
        self.closed = False
        connection.connection_made(self)

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.sent += b"".join(map(bytes, list_of_data))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, None)

    def feed(self, data: bytes, step: int) -> None:
        """Hand over bytes, at most `step` at once and as many as there is room for."""
        while data and not self.closed:
            view = self.connection.get_buffer(-1)
            assert len(view), "there is no room"
            size = min(step, len(view), len(data))
            view[:size] = data[:size]
            data = data[size:]
            self.connection.buffer_updated(size)


def answer_of(body: bytes, *fields: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body) if length is None else length}", *fields]
    return "\r\n".join([*lines, "", ""]).encode() + body


def rows_of(table: Any) -> bytes:
    made: bytes = write_header("output", FLOAT, table.shape, table.nbytes) + table.tobytes()
    return made


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def all_of_it() -> None:
        await work()

    asyncio.run(all_of_it())


def asked(sink: Any, answer: bytes, step: int = 1 << 20, etag: str | None = None) -> tuple[list[Failure | None], Pipe]:
    """What came of one request, and the connection's other side; within a running loop."""
    found: list[Failure | None] = []
    pipe = Pipe(ShardConnection(lambda _: None))
    check = None if etag is None else etag_check(etag)
    pipe.connection.ask([b"request"], sink, check, 9.0, lambda _, failure: found.append(failure))
    pipe.feed(answer, step)
    return found, pipe


@given(st.integers(1, 40), st.sampled_from([1, 3, 64, 2100]), st.integers(1, 3000), st.sampled_from("psc"), st.data())
def test_rows_come_to_their_places_however_they_arrive(
    rows: int, width: int, step: int, way: str, data: st.DataObject
) -> None:
    async def work() -> None:
        table = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
        if way == "c":  # the rows as they stand, in one piece
            out = np.zeros((rows, width), np.float32)
            sink: RowSink | WholeTensors = WholeTensors({"output": (FLOAT, table.shape, out)})
            wanted = table
        else:
            places = np.array(data.draw(st.permutations(range(rows + 2)))[:rows], np.intp)
            out = np.zeros((rows + 2, width + 5 * (way == "s")), np.float32)
            wanted = out[:, :width].copy()
            wanted[places] = table
            strided = out[:, :width].view(np.uint32)
            into = as_rows(out.reshape(-1), 4 * width) if way == "p" else strided
            sink = RowSink(into, places, FLOAT, table.shape, 4 * width)
        found, pipe = asked(sink, answer_of(rows_of(table), f"X-Gathernd-Data-ETag: {ETAG}"), step, ETAG)
        assert found == [None]
        assert (out[:, :width] == wanted).all()
        assert not out[:, width:].any()
        assert pipe.connection.usable
        assert pipe.sent == b"request"

    run(work)


TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)
GOOD = rows_of(TABLE)
BROKEN: list[tuple[str, bytes]] = [
    ("no HTTP", b"SSH-2.0\r\n\r\n"),
    ("HTTP/1.0", b"HTTP/1.0 200 OK\r\ncontent-length: 3\r\n\r\nabc"),
    ("no length", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"),
    ("a length that is none", b"HTTP/1.1 200 OK\r\ncontent-length: -3\r\n\r\nabc"),
    ("a length of 5000 digits", b"HTTP/1.1 200 OK\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\nabc"),
    ("an endless header", b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * BUFFER_BYTES),
    ("more than its length", answer_of(GOOD, length=len(GOOD) - 1)),
    ("less items than its shape", answer_of(GOOD[:-4])),
    ("another type", answer_of(write_header("output", DTYPES["int32"], (3, 2), 24) + bytes(24))),
    ("another shape", answer_of(write_header("output", FLOAT, (2, 3), 24) + bytes(24))),
    ("another name", answer_of(write_header("data", FLOAT, (3, 2), 24) + bytes(24))),
    ("more rows", answer_of(rows_of(np.zeros((4, 2), np.float32)))),
    ("a header beyond the body", answer_of((100).to_bytes(8, "little") + b"{}")),
    ("a huge header", answer_of((1 << 40).to_bytes(8, "little") + bytes(100))),
    ("a header that is no JSON", answer_of((4).to_bytes(8, "little") + b"oops" + bytes(24))),
    ("an empty body", answer_of(b"")),
    ("five bytes", answer_of(b"12345")),
    ("a huge error", answer_of(b"", status="500 Oops", length=1 << 40)),
]


@for_each(("name", "answer"), BROKEN)
@for_each("step", [1 << 20, 7])
def test_any_other_answer_is_refused(name: str, answer: bytes, step: int) -> None:
    async def work() -> None:
        guarded = np.full((5, 2), -1, np.float32)
        out = guarded[1:4]
        sink = RowSink(as_rows(out.reshape(-1), 8), np.arange(3), FLOAT, (3, 2), 8)
        found, pipe = asked(sink, answer, step)
        assert len(found) == 1, name
        assert found[0] is not None
        assert found[0].kind == "broken"
        assert pipe.closed
        assert (guarded[[0, 4]] == -1).all()

    run(work)


def problem(code: str) -> bytes:
    return json.dumps({"code": code, "detail": "why"}).encode()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "overloaded", "busy"),
        (503, "not_ready", "starting"),
        (503, "deadline_exceeded", "deadline"),
        (404, "tensor_not_found", "stale"),
        (500, "tensor_damaged", "stale"),
        (401, "unauthorized", "broken"),
        (500, "internal", "broken"),
        (502, "", "broken"),
    ],
)
def test_a_refusal_is_understood_and_leaves_the_connection_usable(status: int, code: str, kind: str) -> None:
    async def work() -> None:
        body = problem(code) if code else b"<html>"
        for step in (1 << 20, 5):
            answer = answer_of(body, "retry-after: 7", status=f"{status} No")
            found, pipe = asked(WholeBody(10), answer, step)
            told: dict[str, Any] = {"code": code, "said": "why"} if code else {}
            assert found == [Failure(kind, f"it answered {status} {code}".rstrip(), 7, **told)]
            assert pipe.connection.usable

    run(work)


@pytest.mark.parametrize("in_header", [True, False])
def test_an_answer_of_another_content_is_stale(in_header: bool) -> None:
    async def work() -> None:
        if in_header:
            found, _ = asked(WholeBody(1000), answer_of(GOOD, 'x-gathernd-data-etag: "abc-1"'), etag=ETAG)
        else:
            body = json.dumps({"output": {}, "data_etag": '"abc-1"'}).encode()
            found, _ = asked(WholeBody(1000), answer_of(body), etag=ETAG)
        assert [failure and failure.kind for failure in found] == ["stale"]
        body = json.dumps({"output": {}, "data_etag": ETAG}).encode()
        found, _ = asked(WholeBody(1000), answer_of(body), etag=ETAG)
        assert found == [None]

    run(work)


def test_the_text_that_a_body_is_read_into_is_charged_too() -> None:
    charged: list[int] = []
    WholeBody(1000, ToldMemory(charged.append)).begin(600)
    assert sum(charged) == 1200


def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    async def work() -> None:
        _, pipe = asked(WholeBody(1000), answer_of(b"{}"))
        pipe.feed(b"HTTP/1.1 200 OK\r\n", 100)
        assert pipe.closed

    run(work)


@pytest.mark.parametrize(("patience", "again", "wait"), [(0.2, 0.4, 0.3), (9.0, 0.02, 0.0)])
def test_the_next_request_on_a_connection_has_a_patience_of_its_own(patience: float, again: float, wait: float) -> None:
    async def work() -> None:
        loop, late = asyncio.get_running_loop(), asyncio.Event()
        found: list[Failure | None] = []

        def is_late(_: ShardConnection, failure: Failure | None) -> None:
            found.append(failure)
            late.set()

        pipe = Pipe(ShardConnection(lambda _: None))
        pipe.connection.ask([b"request"], WholeBody(1000), None, patience, lambda _, failure: found.append(failure))
        pipe.feed(answer_of(b"{}"), 100)
        assert found == [None]
        begun = loop.time()
        pipe.connection.ask([b"request"], WholeBody(1000), None, again, is_late)
        await asyncio.sleep(wait)
        assert found == [None]
        await asyncio.wait_for(late.wait(), 5.0)
        assert found[1] is not None
        assert found[1].kind == "late"
        assert again - 0.01 <= loop.time() - begun

    run(work)
