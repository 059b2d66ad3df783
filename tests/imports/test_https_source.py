"""Reading from a server by ranges: resumed where it is cut, of one content, checked, bounded."""

from __future__ import annotations

import base64
import hashlib
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.imports import http_ranges
from app.imports.https_source import HttpsSource
from app.imports.source import PIECE_BYTES, SourceFailed
from app.imports.source_urls import AllowedSources, parse, parse_prefix
from tests.for_each import for_each
from tests.http.tensors import npy, save
from tests.imports.range_server import RangeServer, range_server
from tests.imports.sources import read_all, read_tensor

LONG_S = "\u017f".encode().decode("latin-1")
CONTENT = random.Random(1).randbytes(3 * PIECE_BYTES + 12345)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_ranges, "_FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(http_ranges, "_LONGEST_PAUSE_S", 0.0)


@pytest.fixture
def server() -> Iterator[RangeServer]:
    with range_server() as running:
        running.files = {"/a": CONTENT, "/small": CONTENT[:100], "/empty": b""}
        yield running


def source(server: RangeServer, path: str = "/a") -> HttpsSource:
    return HttpsSource(parse(server.url + path), AllowedSources([parse_prefix(server.url)]))


@pytest.mark.parametrize("path", ["/a", "/small", "/empty"])
def test_what_comes_is_what_is_there(server: RangeServer, path: str) -> None:
    assert read_all(source(server, path)) == server.files[path]


@pytest.mark.parametrize("cut_every", [400_000, 1_000_003])
def test_connections_that_are_cut_are_resumed_where_they_were(server: RangeServer, cut_every: int) -> None:
    server.cut_every = cut_every
    assert read_all(source(server)) == CONTENT
    assert server.cuts >= len(CONTENT) // cut_every
    # Nothing comes twice but what was on its way when a connection was cut.
    assert server.sent <= len(CONTENT) + (server.cuts + 1) * (1 << 20)


def test_a_server_that_never_sends_more_is_given_up(server: RangeServer) -> None:
    server.cut_every, server.sent = 10, 0
    server.respond = lambda handler: bool(server.cuts) and handler.answer(503)
    with pytest.raises(SourceFailed, match="503, 3 times in a row"):
        read_all(source(server))


@for_each("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_a_server_cannot_answer_now_is_asked_again(server: RangeServer, status: int) -> None:
    answered = iter((True, True, False))
    server.respond = lambda handler: next(answered, False) and handler.answer(status, Retry_After="0")
    assert read_all(source(server, "/small")) == CONTENT[:100]


@for_each("status", [400, 401, 403, 404, 410, 418, 501])
def test_what_a_server_refuses_is_not_asked_again(server: RangeServer, status: int) -> None:
    server.asked.clear()
    server.respond = lambda handler: handler.answer(status)
    with pytest.raises(SourceFailed, match=str(status)):
        read_all(source(server))
    assert len(server.asked) == 1


CHANGES: dict[str, tuple[bool, dict[str, str], Callable[[RangeServer], None]]] = {
    # whether the file has an ETag of its own, fields at first, and how the file changes
    "other bytes": (True, {}, lambda server: server.files.update({"/a": b"x" + CONTENT[1:]})),
    "longer": (True, {}, lambda server: server.files.update({"/a": CONTENT + b"x"})),
    "longer without an ETag": (False, {}, lambda server: server.files.update({"/a": CONTENT + b"x"})),
    "a later time": (
        False, {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"},
        lambda server: server.fields.update({"Last-Modified": "Mon, 01 Jan 2024 00:00:01 GMT"}),
    ),
    "another weak ETag": (False, {"ETag": 'W/"1"'}, lambda server: server.fields.update({"ETag": 'W/"2"'})),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_is_changed_meanwhile_is_refused(server: RangeServer, change: str) -> None:
    server.etag, fields, work = CHANGES[change]
    server.fields = dict(fields)

    def respond(handler: object) -> bool:
        if len(server.asked) == 3:
            work(server)
        return False

    assert read_all(source(server)) == CONTENT
    server.asked.clear()
    server.respond = respond
    with pytest.raises(SourceFailed, match="changed"):
        read_all(source(server))


@for_each(
    "wrong",
    ["bytes 0-9/100", "bytes 1-99/100", "bytes 0-99/*", "bytes 99-0/100", "bytes 0-99/50", "items 0-99/100", ""],
)
def test_a_range_that_was_not_asked_for_is_refused(server: RangeServer, wrong: str) -> None:
    server.respond = lambda handler: handler.answer(206, b"x" * 100, Content_Range=wrong)
    with pytest.raises(SourceFailed, match="range"):
        read_all(source(server, "/small"))


ITEMS = np.frombuffer(CONTENT[: 12 * 250_000], np.float32).reshape(-1, 3)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("file", "tensor", "items"),
    [
        (npy(ITEMS), None, ITEMS),
        (npy(ITEMS[:0]), None, ITEMS[:0]),
        (save(a=ITEMS[:9], b=ITEMS, c=ITEMS[:7]), "b", ITEMS),
        (save(a=ITEMS[:9], b=ITEMS, c=ITEMS[:7]), "c", ITEMS[:7]),
        (save(**{f"t{number}": ITEMS[number : number + 2] for number in range(2000)}), "t1999", ITEMS[1999:2001]),
    ],
    ids=["npy", "empty", "middle", "last", "long header"],
)
def test_a_server_without_ranges_is_read_once_and_in_order(
    server: RangeServer, file: bytes, tensor: str | None, items: NDArray[Any], chunked: bool
) -> None:
    server.respond = lambda handler: handler.answer_whole(file, chunked=chunked)
    assert read_tensor(source(server), tensor) == items.tobytes()
    assert len(server.asked) == 1


@pytest.mark.parametrize("chunked", [False, True])
def test_a_server_without_ranges_that_is_cut_says_that_it_cannot_go_on(server: RangeServer, chunked: bool) -> None:
    server.respond = lambda handler: handler.answer_whole(npy(ITEMS), chunked=chunked, cut_after=2_000_000)
    with pytest.raises(SourceFailed, match="no ranges") as caught:
        read_tensor(source(server))
    assert "again" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("file", "what"),
    [
        (npy(ITEMS) + b"x", "more bytes"),
        (npy(ITEMS)[:-1], "ends before"),
        (save(a=ITEMS)[:-1], "ends before"),
    ],
)
def test_a_file_of_unknown_length_is_what_its_header_says(server: RangeServer, file: bytes, what: str) -> None:
    server.respond = lambda handler: handler.answer_whole(file, chunked=True)
    with pytest.raises(SourceFailed, match=what):
        read_tensor(source(server))


def test_a_server_that_begins_to_answer_the_whole_is_refused(server: RangeServer) -> None:
    server.respond = lambda handler: len(server.asked) > 1 and handler.answer_whole(CONTENT)
    with pytest.raises(SourceFailed, match="changed"):
        read_all(source(server))


def test_a_compressed_answer_is_refused(server: RangeServer) -> None:
    server.fields = {"Content-Encoding": "gzip"}
    with pytest.raises(SourceFailed, match="compressed"):
        read_all(source(server))
    assert server.headers[0]["accept-encoding"] == "identity"


def drip(handler: Any, text: bytes, first: bytes = b"") -> None:
    """Send the text over and over, a bit at a time, until the client goes."""
    handler.close_connection = True
    handler.wfile.write(first)
    with suppress(OSError):
        while True:
            handler.wfile.write(text)
            time.sleep(0.01)


def drip_body(handler: Any) -> None:
    handler.send_response(206)
    begin, end = handler.headers["Range"].removeprefix("bytes=").split("-")
    handler.send_header("Content-Range", f"bytes {begin}-{end}/{len(CONTENT)}")
    handler.send_header("ETag", handler.etag_of(CONTENT))
    handler.send_header("Content-Length", str(int(end) + 1 - int(begin)))
    handler.end_headers()
    drip(handler, b"x")


@pytest.mark.parametrize(
    ("first", "slowly"),
    [
        (2, drip_body),
        (1, lambda handler: drip(handler, b"HTTP/1.1 103 Early Hints\r\n\r\n")),
        (1, lambda handler: drip(handler, b"x", b"HTTP/1.1 206 Partial Content\r\n")),
    ],
    ids=["body", "hints", "header"],
)
def test_a_server_that_sends_too_slowly_is_given_up(
    server: RangeServer, first: int, slowly: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_ranges, "_GRACE_S", 0.5)
    monkeypatch.setattr(http_ranges, "_SLOWEST", 1 << 30)
    server.respond = lambda handler: len(server.asked) >= first and (slowly(handler), True)[1]
    begun = time.monotonic()
    with pytest.raises(SourceFailed, match="slowly"):
        read_all(source(server))
    assert time.monotonic() - begun < 20


def test_a_header_without_end_is_not_taken_into_memory(server: RangeServer) -> None:
    sent, size = 0, 1 << 14

    def respond(handler: Any) -> bool:
        nonlocal sent
        handler.wfile.write(b"HTTP/1.1 206 Partial Content\r\n")
        with suppress(OSError):
            while sent < 1 << 28:
                handler.wfile.write(b"X-Field: " + b"x" * size + b"\r\n")
                sent += size
        return True

    server.respond = respond
    with pytest.raises(SourceFailed, match="3 times in a row"):
        read_all(source(server))
    assert sent < 1 << 26


@pytest.mark.parametrize(
    ("name", "form"), [("Repr-Digest", "md5=:AAAA:, sha-256=:{}:"), ("Digest", "sha-256={}"),
                       ("x-amz-checksum-sha256", "{}")]
)  # fmt: skip
def test_checksums_are_found(server: RangeServer, name: str, form: str) -> None:
    server.fields = {name: form.format(base64.b64encode(hashlib.sha256(CONTENT).digest()).decode())}
    one = source(server)
    read_all(one)
    assert one.checksum is not None
    assert (one.checksum.algorithm, one.checksum.digest) == ("sha256", hashlib.sha256(CONTENT).digest())


def test_a_piece_that_does_not_match_its_digest_is_refused(server: RangeServer) -> None:
    def respond(handler: object) -> bool:
        if len(server.asked) == 2:
            server.fields = {"Content-Digest": f"sha-256=:{base64.b64encode(bytes(32)).decode()}:"}
        return False

    server.respond = respond
    with pytest.raises(SourceFailed, match="Content-Digest"):
        read_all(source(server))


def test_an_expired_redirect_is_followed_anew(server: RangeServer) -> None:
    valid = [0]

    def respond(handler: object) -> bool:
        path = handler.path  # type: ignore[attr-defined]
        if path == "/start":
            valid[0] += 1
            return bool(handler.answer(302, Location=f"/a?signed={valid[0]}"))  # type: ignore[attr-defined]
        if path == "/a?signed=1" and len(server.asked) > 4:
            return bool(handler.answer(403))  # type: ignore[attr-defined]
        return False

    server.respond = respond
    assert read_all(source(server, "/start")) == CONTENT
    assert valid[0] >= 2


@pytest.mark.parametrize(
    "fields",
    [
        {"X-Amz-Checksum-SHA256": "caf\xe9"},
        # Where the case of letters does not count, a long s is an s to patterns of text.
        {"Repr-Digest": "sha-256=:" + LONG_S * 43 + "=:"},
        {"Digest": "sha-256=" + LONG_S * 43 + "="},
    ],
)
def test_a_checksum_of_other_letters_is_none(server: RangeServer, fields: dict[str, str]) -> None:
    server.fields = fields
    opened = source(server, "/small")
    assert read_all(opened) == CONTENT[:100]
    assert opened.checksum is None
