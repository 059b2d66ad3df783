"""Bodies that are wrong: those of the golden corpus, uploads, compressed ones and bombs, changed at random.

All random choices come from the `Random` that is handed in, so that a body can be made again from its seed.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Final

from tests.golden.requests import requests
from tests.http.forms import tensor

RESIDENT: Final = "t0"
"""A resident tensor that attacks read and change: float32, 8 by 4."""
_ARRAY: Final = b"".join(struct.pack("<f", number) for number in range(32))


@dataclass(slots=True)
class Body:
    """A body for a method and path, with the header fields that go with it."""

    method: str
    path: str
    content: bytes
    fields: list[str] = field(default_factory=list)


_TOKENS: Final = [
    b"-", b"9" * 20, b"9" * 5000, b"1e999", b"-1e-999", b"0" * 30, b"NaN", b"-Infinity", b"null", b'"', b"[", b"]",
    b"{", b"}", b",", b":", b"0", b".", b"\\u", b"\\ud800", b"\\x", b"\x00", b"\xff\xfe", b"\xed\xa0\x80",
    b"\xef\xbb\xbf", b"//", b"/**/", b"'", b"1_0", b"0x1", b"01", b"\t", b"\n", b"\x1b", b"[" * 200, b'{"a":' * 100,
]  # fmt: skip


def flipped(content: bytes, source: Random) -> bytes:
    """`content` with a few bytes changed, removed, repeated or inserted, or its end cut off."""
    made = bytearray(content or b"\x00")
    for _ in range(source.randint(1, 4)):
        if not made:
            break
        at = source.randrange(len(made))
        match source.randrange(6):
            case 0:
                made[at] = source.randrange(256)
            case 1:
                del made[at : at + source.randint(1, 9)]
            case 2:
                made[at:at] = made[at : at + source.randint(1, 20)]
            case 3:
                made[at:at] = source.choice(_TOKENS)
            case 4:
                made[at] ^= 1 << source.randrange(8)
            case _ if source.random() < 0.3:
                del made[at:]
    return bytes(made)


def altered(content: bytes, source: Random) -> bytes:
    """`content` with a few bytes changed and as long as before, so that the same header goes with it."""
    made = bytearray(content)
    for _ in range(source.randint(1, 3) if made else 0):
        made[source.randrange(len(made))] = source.choice(b'0129-[]{}",:.eE \x00\xff')
    return bytes(made)


def _deep(content: bytes, source: Random) -> bytes:
    depth = source.choice((33, 65, 1000, 20_000))
    opening, closing = source.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'{"values":[', b"]}")))
    at = content.find(b": ", source.randrange(len(content))) + 2
    return content[:at] + opening * depth + b"1" + closing * source.choice((0, depth, depth + 1)) + content[at:]


def _encoded(content: bytes, source: Random) -> bytes:
    name = source.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp037"))
    return content.decode("utf-8", "replace").encode(name, "replace")


def _many(content: bytes, source: Random) -> bytes:
    """A document with very many small things in it."""
    count = source.choice((2000, 20_000))
    one = source.choice((b'{"a":0},', b"0,", b'"x",', b"[],", b"1e5,", b"-,"))
    return b'{"data":{"dtype":"float32","shape":[%d],"values":[' % count + (one * count)[:-1] + b"]}" + content[1:]


_WAYS: Final[list[Callable[[bytes, Random], bytes]]] = [_deep, _encoded, _many]
_ASKED: Final = [
    each
    for each in requests()
    if each.method == "POST" and len(each.body) < 1 << 16 and not each.name.startswith("fields_of_headers/")
]


def asked_body(source: Random) -> Body:
    """A request of the golden corpus, of any route and format, in most cases changed at random."""
    made = source.choice(_ASKED)
    content, chance = made.body, source.random()
    if chance < 0.5:
        content = flipped(content, source)
    elif chance < 0.7:
        content = altered(content, source)
    elif chance < 0.8 and content[:1] == b"{":
        content = source.choice(_WAYS)(content, source)
    return Body(made.method, made.target, content, [f"{name}: {value}" for name, value in made.headers.items()])


def _safetensors(header: Any, blob: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + blob


_TABLE_HEADER: Final = {"x": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]}, "__metadata__": {"a": "b"}}
_SCATTER_HEADER: Final = {
    "indices": {"dtype": "I64", "shape": [1, 1], "data_offsets": [0, 8]},
    "updates": {"dtype": "F32", "shape": [1, 4], "data_offsets": [8, 24]},
}
_LENGTHS: Final = [0, 1, 7, 8, 9, 2**20, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]


def changing_body(source: Random) -> Body:
    """An upload or a scatter in safetensors, or what was one."""
    method, path, header, blob = source.choice((
        ("PUT", f"/tensors/t{source.randrange(8)}", _TABLE_HEADER, _ARRAY),
        ("POST", f"/tensors/{RESIDENT}/scatter?reduction=add", _SCATTER_HEADER, struct.pack("<q", 2) + _ARRAY[:16]),
    ))  # fmt: skip
    chance = source.random()
    content = _safetensors(header, blob)
    if 0.2 <= chance < 0.6:
        content = flipped(content, source)
    elif 0.6 <= chance < 0.8:
        content = struct.pack("<Q", source.choice(_LENGTHS)) + content[8:]
    elif chance >= 0.8:
        content = _safetensors(header, source.choice((b"", blob[:-1], blob + b"\x00", blob * 3)))
    return Body(method, path, content, ["Content-Type: application/x-safetensors"])


_DESCRIPTIONS: Final = [
    "'<f4'", "'>f8'", "'|O'", "'|S9'", "'<U4'", "'|V8'", "'<f4" + "4" * 400, "[('a', '<i4')]", "'<m8[ns]'",
    "__import__('os')", "'<c8'", "'|b1'", "None", "1", "'<i' + '8'", "'\x00'",
]  # fmt: skip
_SHAPES: Final = [
    "(8, 4)", "(4, 8)", "(32,)", "()", "(0,)", "(-1,)", "(2**60,)", "(4294967296, 4294967296)", "(8, 4", "[8, 4]",
    "(8.0, 4)", "(1,) * 64", "(True,)", "(" * 300, "(9223372036854775807,)", "(" + "1," * 40 + ")",
]  # fmt: skip


def npy_body(source: Random) -> Body:
    """An upload in npy that was valid once, or has a header from a list of traps."""
    chance = source.random()
    if chance < 0.5:
        text = "{'descr': '<f4', 'fortran_order': False, 'shape': (8, 4), }"
    else:
        order = source.choice(("False", "True", "None", "0", "1 if 1 else 0"))
        kind, shape = source.choice(_DESCRIPTIONS), source.choice(_SHAPES)
        text = f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}"
    version = source.choice((1, 1, 1, 1, 1, 2, 3, 0, 255))
    size = len(text) if source.random() < 0.9 else source.choice((0, 1, 65535))
    head = b"\x93NUMPY" + bytes((version, 0)) + size.to_bytes(2 if version < 2 else 4, "little")
    content = head + text.encode() + _ARRAY
    if source.random() < 0.4:
        content = flipped(content, source)
    fields = ["Content-Type: application/x-npy"] if source.random() < 0.8 else []
    return Body("PUT", f"/tensors/t{source.randrange(8)}", content, fields)


_RAW_QUERIES: Final = [
    "dtype=float32&shape=8,4", "dtype=int8&shape=128", "dtype=string&shape=2", "dtype=bool&shape=128",
    "dtype=float8&shape=8", "dtype=int8", "shape=8,4", "dtype=float32&shape=", "dtype=float32&shape=-8,4",
    "dtype=float32&shape=8,4&shape=8,4", "dtype=int8&shape=1e2", "dtype=float32&shape=99999999999999999999",
    "dtype=int8&shape=9223372036854775807,2", "dtype=int8&shape=" + "1," * 60 + "128", "dtype=%00&shape=%ff",
    "dtype=complex128&shape=8&lock=true&prefault=true", "dtype=int8&shape=128&lock=yes", "dtype=int8&shape=0",
    "dtype=int8&shape=9000000", "dtype=int8&shape=70000000000",
]  # fmt: skip


def raw_body(source: Random) -> Body:
    """An upload of raw bytes whose query does not fit them."""
    content = source.choice((_ARRAY, b"", _ARRAY[:-1], struct.pack("<I", 2) + b"ab" + struct.pack("<I", 2**31)))
    fields = ["Content-Type: application/octet-stream"]
    if source.random() < 0.1:
        fields.append(
            source.choice(("Content-Digest: sha-256=:AAAA:", "Content-Digest: sha-256=", "Content-Digest: md5=:x:"))
        )
    return Body("PUT", f"/tensors/t{source.randrange(8)}?{source.choice(_RAW_QUERIES)}", content, fields)


def _bomb(zeros: int, wbits: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    return packer.compress(b" " * zeros) + packer.flush()


@cache
def _bombs() -> list[tuple[str, bytes]]:
    """Content-Encoding and body. Made when first asked for, since that takes a second."""
    return [
        ("gzip", _bomb(1 << 25, 31)), ("deflate", _bomb(1 << 25, 15)), ("deflate", _bomb(1 << 25, -15)),
        ("gzip", gzip.compress(_bomb(1 << 25, 31))), ("gzip", _bomb(1 << 24, 31) * 3),
    ]  # fmt: skip


_NO_ENCODINGS: Final = [
    "br", "gzip, gzip", "identity, gzip", "zstd", "compress", "x-gzip", "GZIP", "", "gzip;q=1", "\xff",
]  # fmt: skip


def packed_body(source: Random) -> Body:
    """A body with a Content-Encoding: broken, cut short, followed by more, of no encoding, or a bomb."""
    chance = source.random()
    target = source.choice(("/gathernd", "/v2/models/gathernd/infer", f"/tensors/{RESIDENT}/scatter"))
    if chance < 0.01:
        encoding, content = source.choice(_bombs())
        return Body("POST", target, content, [f"Content-Encoding: {encoding}"])
    if chance < 0.02:
        fields = ["Content-Encoding: gzip", "Content-Type: application/octet-stream"]
        return Body("PUT", "/tensors/t9?dtype=int8&shape=7000000", _bombs()[0][1], fields)
    encoding = source.choice(("gzip", "deflate"))
    made = asked_body(source)
    content = gzip.compress(made.content, 1) if encoding == "gzip" else zlib.compress(made.content, 1)
    chance = source.random()
    if chance < 0.3:
        content = flipped(content, source)
    elif chance < 0.4:
        content = content[: source.randrange(len(content))]
    elif chance < 0.5:
        content += source.choice((content, b"\x00", b"garbage"))
    elif chance < 0.6:
        encoding = source.choice(_NO_ENCODINGS)
    return Body("POST", made.path, content, [*made.fields, f"Content-Encoding: {encoding}"])


def heaviest() -> list[Body]:
    """Some bodies that take as much memory as the soak's limits allow."""
    rows = struct.pack("<q", 1) * (1 << 18)
    header = {"indices": {"dtype": "I64", "shape": [1 << 18, 1], "data_offsets": [0, len(rows)]}}
    numbers = {"data": tensor("float64", [500_000], [0.5] * 500_000), "indices": tensor("int64", [1, 1], [1])}
    bombs = [Body("POST", "/gathernd", content, [f"Content-Encoding: {name}"]) for name, content in _bombs()]
    fields = ["Content-Encoding: gzip", "Content-Type: application/octet-stream"]
    return [
        *bombs,
        Body("PUT", "/tensors/t9?dtype=int8&shape=7000000", _bombs()[0][1], fields),
        Body("POST", "/gathernd?tensor=good", _safetensors(header, rows), ["Content-Type: application/x-safetensors"]),
        Body("POST", "/gathernd", json.dumps(numbers, separators=(",", ":")).encode()),
        Body("GET", "/tensors/good/content", b""),
    ]


BODIES: Final[list[tuple[Callable[[Random], Body], int]]] = [
    (asked_body, 65), (changing_body, 10), (npy_body, 8), (raw_body, 7), (packed_body, 10),
]  # fmt: skip
"""Kinds of bodies, and how often each is to come."""
