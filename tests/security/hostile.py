"""Hostile requests without end, from a seed: whole ones whose content is wrong, and attacks on the framing of HTTP.

A whole request is framed rightly, so it must be answered, with its own X-Request-ID and in its turn, whatever is in it;
that is how a service which loses its place in the stream is found. An attack breaks the framing: what comes back must
be answers and nothing else, and what it tries to smuggle in, whose X-Request-ID is SMUGGLED, may never be answered.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.http.server import ROOT
from tests.http.test_raw import BAD_FRAMING
from tests.security.hostile_bodies import BODIES, RESIDENT, Body, asked_body, flipped

SMUGGLED: Final = "smuggled"
_MAKERS: Final = [maker for maker, _ in BODIES]
_WEIGHTS: Final = [weight for _, weight in BODIES]


@dataclass(slots=True)
class Whole:
    """A request that is framed rightly; `last` where the connection may end with its answer."""

    data: bytes
    id: str | None
    head: bool
    last: bool


_METHODS: Final = [
    "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "PROPFIND", "MKCOL", "LOCK", "PURGE",
    "MOVE", "SEARCH", "M-SEARCH",
]  # fmt: skip
_NAMES: Final = [
    RESIDENT, "t1", "t7", "nobody", "gathernd", "gather", "stats", ".", "..", "%2e%2e", "..%2f..%2f..%2fescaped",
    "a%00b", "%ff", "a%2Fcontent", "a" * 129, "a" * 3000, "%F0%9F%92%A9", "%ED%A0%80", "%0d%0aX-Injected:1", "a;b",
    "*", "%", "%zz", "", "swagger-ui.css", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "~root", "$(id)", "'%20or%201=1",
    "{name}", "index_out_of_bounds", "1", "2",
]  # fmt: skip
_QUERIES: Final = [
    "", "", "?", "?rows=0:2", "?rows=2:1", "?rows=-1:2", "?rows=0:99999999999999999999", "?rows=a:b", "?rows=",
    "?limit=0", "?limit=99999999999", "?limit=2&after=t1", "?after=%ff", "?after=" + "z" * 2000, "?batch_dims=1",
    "?batch_dims=" + "9" * 5000, "?axis=1e3", "?x=1", "?%00=%00", "?&&&==&", "?tensor=t0&tensor=t0",
    "?dialect=onnx-99", "?" + "a=1&" * 500, "?a#b", "?prefault=1",
]  # fmt: skip
_STRAYS: Final = [
    "/", "*", "//", "/.", "/..", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/docs/../../app/main.py",
    "/docs/%2e%2e/x", "/.git/config", "/tensors/", "/tensors//", "/tensors/a/b/c/d", "/gathernd/", "/GATHERND",
    "/gathernd;x=1", "/gathernd%00", "/gathernd\xa0", "/v2/", "/v2/models", "/v2//models/gathernd/infer",
    "/v2/models/gathernd/versions/9/infer", "/v2/models/gathernd/infer/infer", "/v2/models//infer",
    "/v2/models/%2fetc/infer", "http://localhost/livez", "http://localhost:99999/livez",
    "http://evil.example/gathernd", "http://", "http://[::1", "ftp://localhost/", "localhost:80", "livez", "?x", "#",
    "/a#b", "/%", "/%zz", "/\\..\\x", "/" + "a/" * 2000, "/metrics", "/livez", "/readyz", "/errors/../errors",
    "/errors/%69nternal",
]  # fmt: skip
_FIELDS: Final = [
    "Accept: application/x-safetensors", "Accept: application/json;q=0", "Accept: " + "*/*," * 400, "Accept: \xff",
    "Accept:", "Accept: ;;;q=nan", "Accept-Encoding: gzip", "Accept-Encoding: deflate",
    "Accept-Encoding: identity;q=0, *;q=0", "Accept-Encoding: gzip\xa0",
    "Content-Type: application/json; charset=utf-16", "Content-Type: text/plain",
    "Content-Type: application/x-www-form-urlencoded", "Content-Type: multipart/form-data; boundary=" + "x" * 500,
    "Content-Type: \xff\xfe", "Content-Type:", "Content-Type: application/x-npy", "Content-Type: APPLICATION/JSON;;;",
    "Content-Encoding: gzip", "Content-Encoding: deflate", "Content-Encoding: br", "Content-Encoding:",
    "Range: bytes=0-0", "Range: bytes=" + "0-," * 1000, "If-Match: *", "If-Match: x", 'If-Match: "' + "a" * 5000,
    'If-Match: W/"a", "b"', "If-None-Match: *", 'If-None-Match: ""', "If-None-Match: ,,,", "Idempotency-Key: 1",
    "Idempotency-Key: " + "k" * 300, "Idempotency-Key: \xff", "Content-Digest: sha-256=:" + "A" * 43 + "=:",
    "Content-Digest: x", "Host: evil.example", "Host:", "Host: localhost, localhost", "Origin: http://evil.example",
    "Origin: null", "Origin: http://localhost:1", "Authorization: Bearer x", "Authorization: Basic " + "A" * 3000,
    "Cookie: " + "a=b;" * 2000, "X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: localhost",
    "X-Original-URL: /metrics", "X-HTTP-Method-Override: DELETE", "Forwarded: for=127.0.0.1;host=localhost",
    "Via: 1.1 x", "Proxy-Connection: keep-alive", "Max-Forwards: 0", "TE: trailers", "Trailer: Content-Length",
    "Keep-Alive: timeout=99999", "Connection: keep-alive", "Connection: x-request-id, content-length", "Upgrade: h2c",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAA",
    "traceparent: 00-" + "0" * 32 + "-" + "0" * 16 + "-00", "traceparent: " + "f" * 3000, "tracestate: \xff=\xff",
    "X-A:", "X-A: \t \t", "X-" + "A" * 3000 + ": 1", "X-A: " + "\xff" * 1000, "x-a: 1\r\nX-A: 2",
    "Inference-Header-Content-Length: 5", "Inference-Header-Content-Length: x", "Timeout: 0", "X-Request-Timeout: -1",
    "X-SMUGGLED: GET /metrics HTTP/1.1",
]  # fmt: skip
_PLAIN_TARGET: Final = re.compile(r"/[!-~]*")
_LAST_FIELDS: Final = ["Expect: 200-ok", "Expect: 100-continue", "Connection: close", "Connection: close, keep-alive"]


def _templates() -> list[str]:
    """Every path of the service's own description, with places for names."""
    paths = json.loads((ROOT / "openapi" / "openapi.json").read_text())["paths"]
    return [
        path.split("{")[0] + "".join("{}" + rest.partition("}")[2] for rest in path.split("{")[1:]) for path in paths
    ]


TEMPLATES: Final = _templates()


def _routed(source: Random) -> Body:
    """A method that need not fit, on a path of the service or one that is none, with a body or none."""
    target = source.choice(TEMPLATES) if source.random() < 0.8 else source.choice(_STRAYS)
    while "{}" in target:
        target = target.replace("{}", source.choice(_NAMES), 1)
    if source.random() < 0.4:
        target += source.choice(_QUERIES)
    content = asked_body(source).content if source.random() < 0.3 else b""
    return Body(source.choice(_METHODS), target, content)


def _chunked(content: bytes, source: Random) -> bytes:
    """`content` in chunks, with what the framing allows: sizes in any case, leading zeros, extensions, trailers."""
    pieces = []
    place = 0
    while place < len(content):
        size = source.choice((1, 7, 100, 5000))
        piece = content[place : place + size]
        form = source.choice((b"%x", b"%X", b"00%x"))
        extension = source.choice((b"", b"", b";a=b", b';a="\\""', b";" + b"x" * 200))
        pieces.append(b"%b%b\r\n%b\r\n" % (form % len(piece), extension, piece))
        place += size
    trailer = source.choice((b"", b"", b"X-T: 1\r\n", b"X-Request-ID: trailer\r\n"))
    return b"".join((*pieces, b"0\r\n", trailer, b"\r\n"))


def whole(source: Random, name: str) -> Whole:
    """A hostile request that is framed rightly; `name` becomes its X-Request-ID, but for some that carry none."""
    made = _routed(source) if source.random() < 0.25 else source.choices(_MAKERS, _WEIGHTS)[0](source)
    method = made.method
    chance = source.random()
    if chance < 0.05:
        method = source.choice(_METHODS)
    elif chance < 0.07:
        # A letter of the path is another: still no space or control character, so still framed rightly.
        at = source.randrange(1, len(made.path)) if len(made.path) > 1 else 0
        made.path = made.path[:at] + source.choice("/%._-~A0?&=") + made.path[at + (at > 0) :]
    fields = made.fields
    while source.random() < 0.25:
        fields.append(source.choice(_FIELDS))
    last = not _PLAIN_TARGET.fullmatch(made.path)
    if source.random() < 0.02:
        fields.append(source.choice(_LAST_FIELDS))
        last = True
    given: str | None = name
    chance = source.random()
    if chance < 0.2:
        given = None
    elif chance < 0.23:
        given = None
        fields.append(
            "X-Request-ID: " + source.choice(("", "a b", "\xff", "a" * 129, "<script>", "a\r\nX-Request-ID: b"))
        )
    else:
        fields.append(f"X-Request-ID: {name}")
    version = "1.1"
    if source.random() < 0.01:
        version, last = "1.0", True
    content = made.content
    if content and version == "1.1" and source.random() < 0.08:
        content = _chunked(content, source)
        fields.append("Transfer-Encoding: chunked")
    elif content or source.random() < 0.5:
        fields.append(f"Content-Length: {len(content)}")
    host = "" if any(field.startswith("Host") for field in fields) and source.random() < 0.5 else "Host: localhost\r\n"
    text = f"{method} {made.path} HTTP/{version}\r\n{host}" + "\r\n".join(fields) + "\r\n\r\n"
    return Whole(text.encode("latin-1", "replace") + content, given, method == "HEAD", last)


_SMUGGLED: Final = (
    b"PUT /tensors/smuggled HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
    b"X-Request-ID: " + SMUGGLED.encode() + b"\r\nContent-Length: 0\r\n\r\n"
)
_START: Final = b"POST /gathernd HTTP/1.1\r\nHost: localhost\r\n"
_AMBIGUOUS: Final = [
    # What one reader takes for the body is a request of its own for another.
    b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n",
    b"Content-Length: 5\r\nContent-Length: %d\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d, 5\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer-Encoding: \tchunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nX-A: x\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nX-A: x\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer-Encoding\x00: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer_Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
    b"Content-Length: %d\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"Content-Length:%d\x0c\r\nX-A: 1\r\n\r\n",
    b"Content-Length: 0%d\x00\r\n\r\n",
    # A chunk that ends where its size does not say.
    b"Transfer-Encoding: chunked\r\n\r\n%x\n",
    b"Transfer-Encoding: chunked\r\n\r\n0%x;a=\n",
    b"Transfer-Encoding: chunked\r\n\r\n 0%x\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n0x%x\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n+%x\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n%x \t\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n%xg\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n1000000000000000%02x\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n%x;" + b"e" * 70_000 + b"\r\n",
    b"Transfer-Encoding: chunked\r\n\r\n%x\r\n",
]  # fmt: skip
_HEADERS_WITHOUT_END: Final = [
    b"X-A: " + b"a" * 70_000, b"X-A: 1\r\n" * 150 + b"\r\n", b"X" * 70_000 + b": 1\r\n\r\n", b"A:b\r\n" * 20_000,
    b":\r\n" * 200, b"\r\n".join(b"X-%d: 1" % number for number in range(200)) + b"\r\n\r\n",
]  # fmt: skip
_LINES: Final = [
    b"GET /\r\n", b"GET\r\n\r\n", b"GET / HTTP/0.9\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/2.0\r\n\r\n",
    b"GET  /  HTTP/1.1\r\n\r\n", b"get / http/1.1\r\n\r\n",
    b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x00" * 500, b"\n" * 3000 + b"x", b"\r" * 300,
    b"GET /\x00 HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /\x7f HTTP/1.1\r\nHost: a\r\n\r\n", b"GET /" + b"a" * 70_000,
    b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n", b"G\x00T / HTTP/1.1\r\n\r\n", b"*1\r\n$4\r\nPING\r\n",
    b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", b"SSH-2.0-x\r\n", b"EHLO x\r\n",
    b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\nGET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n\x00\x00\x00", b"GET / HTTP/1.1\nHost: localhost\n\n",
    b"GET / HTTP/1.1\r\nHost: a\r\n\tb: c\r\n\r\n", b"\xef\xbb\xbfGET / HTTP/1.1\r\nHost: a\r\n\r\n",
]  # fmt: skip


def attack(source: Random) -> bytes:
    """Bytes that break the framing, or end before it does; after them the connection is of no more use."""
    chance = source.random()
    if chance < 0.2:
        return source.choice(list(BAD_FRAMING.values()))
    if chance < 0.5:
        form = source.choice(_AMBIGUOUS)
        return _START + form.replace(b"%02x", b"%x") % len(_SMUGGLED) + _SMUGGLED if b"%" in form else form
    if chance < 0.55:
        return _START + source.choice(_HEADERS_WITHOUT_END)
    if chance < 0.65:
        return source.choice(_LINES)
    if chance < 0.7:
        # More is announced than ever comes.
        length = source.choice((1, 10_000, 2**31, 2**62))
        return _START + b"Content-Length: %d\r\n\r\n" % length + b"{"
    data = whole(source, "broken").data
    if chance < 0.85:
        return data[: source.randrange(1, len(data))]
    if chance < 0.9:
        return struct.pack("<Q", source.getrandbits(64)) + source.randbytes(source.randint(0, 300))
    head, end, body = data.partition(b"\r\n\r\n")
    return flipped(head, source) + end + body
