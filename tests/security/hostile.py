"""Hostile requests without end, from a seed: whole ones whose content is wrong, and attacks on the framing of HTTP.

A whole request is framed rightly, so it must be answered, with its own X-Request-ID and in its turn. An attack breaks
the framing: what it tries to smuggle in, whose X-Request-ID is SMUGGLED, may never be answered.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from random import Random
from typing import Final, NamedTuple

from app.api.schemas import examples
from tests.costly_bodies.makers import MAKERS
from tests.costly_bodies.read_body import Body
from tests.http.raw import request
from tests.http.server import ROOT
from tests.http.test_raw import BAD_FRAMING

SMUGGLED: Final = "smuggled"


class Whole(NamedTuple):
    """A request that is framed rightly."""

    data: bytes
    id: str
    head: bool


_TOKENS: Final = [
    b"-", b"9" * 5000, b"1e999", b"NaN", b"null", b'"', b"[", b"]", b"{", b"}", b",", b":", b"\\u", b"\\ud800", b"\x00",
    b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"01", b"\n", b"[" * 200, b'{"a":' * 100, b"\xff" * 9 + b"\x01",
]  # fmt: skip
_METHODS: Final = ["GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "PROPFIND", "M-SEARCH"]
_NAMES: Final = [
    "a", "nobody", "gathernd", ".", "..", "%2e%2e", "..%2f..%2fescaped", "a%00b", "%ff", "a" * 129, "%ED%A0%80",
    "%0d%0aX-Injected:1", "a;b", "%", "%zz", "index_out_of_bounds",
]  # fmt: skip
_QUERIES: Final = [
    "", "", "", "?rows=2:1", "?rows=0:99999999999999999999", "?limit=0", "?after=%ff", "?axis=1e3", "?%00=%00",
    "?&&==&", "?tensor=a&tensor=a", "?dialect=onnx-99", "?" + "a=1&" * 500, "?dtype=int8&shape=9223372036854775807,2",
]  # fmt: skip
_FIELDS: Final = [
    "Accept: application/json;q=0", "Accept: " + "*/*," * 400, "Accept: \xff", "Accept-Encoding: identity;q=0, *;q=0",
    "Content-Type: \xff\xfe", "Content-Type:", "Content-Type: application/x-npy", "Content-Type: text/plain",
    "Content-Encoding: br", "Content-Encoding: gzip", "Range: bytes=0-0", 'If-Match: "' + "a" * 5000,
    "If-None-Match: ,,,", "Idempotency-Key: \xff", "Content-Digest: sha-256=:AAAA:", "Host: evil.example",
    "Origin: null", "Authorization: Basic " + "A" * 3000, "X-Forwarded-Host: localhost", "TE: trailers",
    "Connection: x-request-id, content-length", "Connection: Upgrade\r\nUpgrade: h2c", "traceparent: " + "f" * 3000,
    "X-" + "A" * 3000 + ": 1", "Inference-Header-Content-Length: 5", "X-SMUGGLED: GET /metrics HTTP/1.1",
]  # fmt: skip


def flipped(content: bytes, source: Random) -> bytes:
    """`content` with a few bytes changed, removed, repeated or inserted, or its end cut off."""
    made = bytearray(content or b"\x00")
    for _ in range(source.randint(1, 4)):
        at = source.randrange(max(1, len(made)))
        match source.randrange(6):
            case 0:
                made[at : at + 1] = bytes([source.randrange(256)])
            case 1:
                del made[at : at + source.randint(1, 9)]
            case 2:
                made[at:at] = made[at : at + source.randint(1, 20)]
            case 3 | 4:
                made[at:at] = source.choice(_TOKENS)
            case _ if source.random() < 0.3:
                del made[at:]
    return bytes(made)


@cache
def _seeds() -> list[Body]:
    """Small bodies of every group of the corpus, and the requests that OpenAPI shows."""
    shown = [
        Body(name, "json", operator, json.dumps(sent).encode())
        for operator, requests in examples.REQUESTS.items()
        for name, (_, sent, _) in requests.items()
    ]
    return shown * 20 + [body for make in MAKERS.values() for body in make(300) if body.format != "grpc"]


@cache
def _paths() -> list[str]:
    return list(json.loads((ROOT / "openapi" / "openapi.json").read_text())["paths"])


def _routed(source: Random) -> tuple[str, str, dict[str, str], bytes]:
    """A method that need not fit, on a path of the service, with a body or none."""
    path = "".join(source.choice(_NAMES) if part[:1] == "{" else part for part in _split(source.choice(_paths())))
    content = source.choice(_seeds()).content if source.random() < 0.3 else b""
    return source.choice(_METHODS), path + source.choice(_QUERIES), {}, content


def _split(template: str) -> list[str]:
    """The parts of a template: its texts, and its names in braces."""
    return template.replace("{", "\0{").replace("}", "}\0").split("\0")


def _chunked(content: bytes, source: Random) -> bytes:
    """`content` in chunks, with what the framing allows: sizes in any case, leading zeros, extensions, trailers."""
    pieces, place = [], 0
    while place < len(content):
        piece = content[place : place + source.choice((7, 100, 5000))]
        form, extension = source.choice((b"%x", b"00%X")), source.choice((b"", b';a="\\""', b";" + b"x" * 200))
        pieces.append(b"%b%b\r\n%b\r\n" % (form % len(piece), extension, piece))
        place += len(piece)
    return b"".join((*pieces, b"0\r\n", source.choice((b"", b"X-Request-ID: trailer\r\n")), b"\r\n"))


def whole(source: Random, name: str) -> Whole:
    """A hostile request that is framed rightly; `name` becomes its X-Request-ID."""
    if source.random() < 0.25:
        method, path, headers, content = _routed(source)
    else:
        seed = source.choice(_seeds())
        method, path, headers = seed.request()
        content = flipped(seed.content, source) if source.random() < 0.7 else seed.content
    fields = [f"{field}: {value}" for field, value in headers.items()]
    if source.random() < 0.1:
        packed = gzip.compress(content, 1)
        content = flipped(packed, source) if source.random() < 0.5 else packed
        fields.append("Content-Encoding: gzip")
    while source.random() < 0.25:
        fields.append(source.choice(_FIELDS))
    is_chunked = bool(content) and source.random() < 0.08
    if is_chunked:
        content = _chunked(content, source)
        fields.append("Transfer-Encoding: chunked")
    line = f"{method} {path} HTTP/1.1"
    return Whole(
        request(content, *fields, f"X-Request-ID: {name}", line=line, length=not is_chunked), name, method == "HEAD"
    )


_START: Final = b"POST /gathernd HTTP/1.1\r\nHost: localhost\r\n"
_INNER: Final = request(b"", f"X-Request-ID: {SMUGGLED}", line="PUT /tensors/smuggled?dtype=int8&shape=0 HTTP/1.1")
_AMBIGUOUS: Final = [
    # What one reader takes for the body is a request of its own for another.
    b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: 5\r\nContent-Length: %d\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d, 5\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nX-A: x\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer-Encoding\x00: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: 0%d\x00\r\n\r\n",
    # A chunk that ends where its size does not say.
    b"Transfer-Encoding: chunked\r\n\r\n%x\n",
    b"Transfer-Encoding: chunked\r\n\r\n 0%x\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n+%x\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n%xg\r\n",
]  # fmt: skip


def attack(source: Random) -> bytes:
    """Bytes that break the framing, or end before it does; after them the connection is of no more use."""
    chance = source.random()
    if chance < 0.3:
        return source.choice(list(BAD_FRAMING.values()))
    if chance < 0.6:
        return _START + source.choice(_AMBIGUOUS) % len(_INNER) + _INNER
    data = whole(source, "broken").data
    if chance < 0.8:
        return data[: source.randrange(1, len(data))]
    head, end, body = data.partition(b"\r\n\r\n")
    return flipped(head, source) + end + body
