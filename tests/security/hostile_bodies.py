"""Bodies that are wrong: valid ones of every format, changed at random in bytes, tokens, fields and declared lengths.

All random choices come from the `Random` that is handed in, so that a body can be made again from its seed.
"""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Final

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


def _tensor(dtype: str, shape: list[int], values: list[Any]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "values": values}


JSON: Final[list[tuple[str, dict[str, Any]]]] = [
    ("/gathernd", {
        "data": _tensor("float32", [2, 2], [0, 1.5, -2, 3e3]), "indices": _tensor("int64", [2, 2], [0, 0, 1, 1]),
        "batch_dims": 0, "dialect": "onnx-13", "device": "auto", "output_encoding": "values",
    }),
    ("/gathernd", {
        "data": {"dtype": "int32", "values": [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]},
        "indices": {"dtype": "int64", "values": [[1], [0]]}, "batch_dims": 1,
    }),
    ("/gathernd", {
        "data": {"dtype": "int64", "shape": [2], "base64": "AQAAAAAAIAACAAAAAAAgAA=="},
        "indices": _tensor("int64", [1, 1], [-1]), "output_encoding": "base64",
    }),
    ("/gathernd", {"data": {"tensor": RESIDENT}, "indices": _tensor("int64", [2, 1], [5, 7])}),
    ("/gathernd", {
        "data": _tensor("string", [2], ["a", "\U0001f642"]), "indices": _tensor("uint8", [1, 1], [1]),
        "dialect": "openvino-8",
    }),
    ("/gather", {
        "data": _tensor("complex64", [2, 1], [[0, 1], [2, "NaN"]]), "indices": _tensor("int32", [2], [-1, 0]),
        "axis": 0,
    }),
    ("/gather", {"data": _tensor("bool", [3], [True, False, True]), "indices": _tensor("int64", [], [2]), "axis": -1}),
    (f"/tensors/{RESIDENT}/scatter", {
        "indices": _tensor("int64", [1, 2], [5, 0]), "updates": _tensor("float32", [1], [0.5]), "reduction": "none",
    }),
    (f"/tensors/{RESIDENT}/scatter", {
        "indices": _tensor("int64", [2, 1], [5, 1]), "updates": _tensor("float32", [2, 4], [1] * 8), "reduction": "max",
    }),
    ("/v2/models/gathernd/infer", {
        "inputs": [
            {"name": "data", "datatype": "FP32", "shape": [2], "data": [1, 2]},
            {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [1]},
        ], "id": "a", "parameters": {"batch_dims": 0, "timeout": 10_000_000, "binary_data_output": False},
        "outputs": [{"name": "output", "parameters": {"binary_data": True}}],
    }),
    (f"/v2/models/{RESIDENT}/infer", {
        "inputs": [{"name": "indices", "datatype": "INT64", "shape": [2, 1], "data": [[1], [2]]}],
    }),
    ("/v2/models/gather/versions/1/infer", {
        "inputs": [
            {"name": "data", "datatype": "BYTES", "shape": [2], "data": ["x", "y"]},
            {"name": "indices", "datatype": "INT32", "shape": [1], "data": [1]},
        ], "parameters": {"axis": 0},
    }),
    ("/scatternd", {
        "data": _tensor("float16", [3], [0, 1.5, "NaN"]), "indices": _tensor("int64", [2, 1], [0, -1]),
        "updates": _tensor("float16", [2], [7, -0.0]), "reduction": "add", "dialect": "onnx-18",
    }),
    ("/scatter_elements", {
        "data": _tensor("string", [2, 2], ["a", "b", "c", "d"]), "indices": _tensor("int32", [1, 2], [1, 0]),
        "updates": _tensor("string", [1, 2], ["x", ""]), "axis": -1, "output_encoding": "base64",
    }),
    ("/gather", {
        "data": _tensor("int8", [2, 3], [1] * 6), "indices": _tensor("uint8", [2, 1], [1, 9]), "axis": 1,
        "batch_dims": 1, "dialect": "openvino-8", "out_of_bounds": "fill", "fill_value": -1,
    }),
    ("/gathernd/backward", {
        "indices": _tensor("int64", [2, 1], [3, 0]), "grad_output": _tensor("float32", [2, 2], [1, 2, 1e3, "NaN"]),
        "data_shape": [4, 2], "lda_coeff": 0.5, "sparse": True, "batch_dims": 0,
    }),
    ("/gather/backward", {
        "indices": _tensor("int32", [3], [7, 0, 7]), "grad_output": _tensor("float32", [3, 4], [0.5] * 12),
        "tensor": RESIDENT, "axis": 0, "sparse": False,
    }),
    ("/lookup", {
        "features": [
            {"tensor": RESIDENT, "indices": _tensor("int64", [2], [7, 0])},
            {"tensor": RESIDENT, "indices": _tensor("int32", [3], [1, 1, 2]), "offsets": _tensor("int32", [2], [0, 3]),
             "pooling": "sum", "weights": _tensor("float32", [3], [1, 0.5, -2])},
        ], "concat": True, "out_of_bounds": "error", "output_encoding": "values",
    }),
    ("/lookup", {
        "features": [{"tensor": RESIDENT, "indices": {"dtype": "int64", "values": [[0], [9]]}, "pooling": "none"}],
        "concat": False, "out_of_bounds": "fill", "fill_value": 1.5,
    }),
    ("/v2/models/scatternd/infer", {
        "inputs": [
            {"name": "data", "datatype": "INT8", "shape": [2], "data": [1, 2]},
            {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [1]},
            {"name": "updates", "datatype": "INT8", "shape": [1], "data": [5]},
        ], "parameters": {"reduction": "max", "dialect": "onnx-18"},
    }),
    ("/v2/models/lookup/infer", {
        "inputs": [
            {"name": "0.indices", "datatype": "INT64", "shape": [3], "data": [1, 2, 7]},
            {"name": "0.offsets", "datatype": "INT64", "shape": [1], "data": [0]},
        ], "parameters": {"lookup": '{"features": [{"tensor": "t0", "pooling": "mean"}], "concat": true}'},
    }),
    ("/v2/repository/index", {"ready": True}),
    ("/v2/repository/models/gathernd/load", {"parameters": {"config": "{}"}}),
]  # fmt: skip
JSON_BYTES: Final = [(path, json.dumps(body).encode()) for path, body in JSON]

_ODD_VALUES: Final[list[Any]] = [
    None, True, False, 0, -1, 1, 2, 33, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400, 0.5, -0.0,
    1e308, "", "a", "NaN", "Infinity", "\ud800", "\x00", "a" * 300, "float8", "float64", "int8", "string", "BYTES",
    "FP16", "complex128", "onnx-11", "openvino-8", "onnx-12", "gpu", "base64", "add", [], [[]], {}, [0],
    [2**62, 2**62], [-1], [1] * 40, [[0], [1, 2]], {"a": 1}, "none/../../etc", [None], ["x"], [[[[[1]]]]],
    {"tensor": "nobody"}, {"tensor": "../x"},
]  # fmt: skip
_ODD_KEYS: Final = [
    "",
    "x",
    "data",
    "indices",
    "values",
    "shape",
    "base64",
    "tensor",
    "axis",
    "batch_dims",
    "updates",
    "offsets",
    "weights",
    "features",
    "sparse",
    "fill_value",
    "\ud800",
    "a" * 500,
]
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
    for _ in range(source.randint(1, 3)):
        made[source.randrange(len(made))] = source.choice(b'0129-[]{}",:.eE \x00\xff')
    return bytes(made)


def misfielded(document: Any, source: Random) -> Any:
    """A copy of a JSON document with a field replaced, removed or added, at any depth."""
    document = deepcopy(document)
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        here = document
        while True:
            places = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not places:
                break
            place = source.choice(places)
            if isinstance(here[place], (dict, list)) and source.random() < 0.7:
                here = here[place]
                continue
            if source.random() < 0.8:
                here[place] = deepcopy(source.choice(_ODD_VALUES))
            else:
                del here[place]
            break
        if isinstance(here, dict) and source.random() < 0.2:
            here[source.choice(_ODD_KEYS)] = deepcopy(source.choice(_ODD_VALUES))
    return document


def _repeated_key(content: bytes, source: Random) -> bytes:
    """The document with one of its members in it twice."""
    at = content.find(b'": ', source.randrange(len(content))) + 1 or content.find(b'":') + 1
    begin = content.rfind(b'"', 0, at - 1)
    return content[:begin] + content[begin:at] + b":0," + content[begin:]


def _deep(content: bytes, source: Random) -> bytes:
    depth = source.choice((33, 65, 1000, 20_000))
    opening, closing = source.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'{"values":[', b"]}")))
    at = content.find(b": ", source.randrange(len(content))) + 2
    return content[:at] + opening * depth + b"1" + closing * source.choice((0, depth, depth + 1)) + content[at:]


def _encoded(content: bytes, source: Random) -> bytes:
    name = source.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp037"))
    return content.decode("utf-8", "replace").encode(name)


def _many(content: bytes, source: Random) -> bytes:
    """A document with very many small things in it."""
    count = source.choice((2000, 20_000))
    one = source.choice((b'{"a":0},', b"0,", b'"x",', b"[],", b"1e5,", b"-,"))
    return b'{"data":{"dtype":"float32","shape":[%d],"values":[' % count + (one * count)[:-1] + b"]}" + content[1:]


_JSON_WAYS: Final[list[Callable[[bytes, Random], bytes]]] = [_repeated_key, _deep, _encoded, _many]


def json_body(source: Random) -> Body:
    """A request in JSON that was valid once."""
    number = source.randrange(len(JSON))
    path, content = JSON_BYTES[number]
    chance = source.random()
    if chance < 0.1:
        pass  # among the broken ones, sound ones change the state that they meet
    elif chance < 0.2:
        content = altered(content, source)
    elif chance < 0.45:
        content = flipped(content, source)
    elif chance < 0.9:
        content = json.dumps(misfielded(JSON[number][1], source)).encode()
    elif chance < 0.92:
        content = content * source.randint(2, 3)
    else:
        content = source.choice(_JSON_WAYS)(content, source)
    return Body("POST", path, content)


def _safetensors(header: Any, blob: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + blob


_GATHER_HEADER: Final = {
    "data": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]},
    "indices": {"dtype": "I64", "shape": [2, 1], "data_offsets": [128, 144]},
}
_LOOKUP_HEADER: Final = {"indices": {"dtype": "I64", "shape": [2, 1], "data_offsets": [0, 16]}}
_TABLE_HEADER: Final = {"x": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, 128]}, "__metadata__": {"a": "b"}}
_SCATTER_HEADER: Final = {
    "indices": {"dtype": "I64", "shape": [1, 1], "data_offsets": [0, 8]},
    "updates": {"dtype": "F32", "shape": [1, 4], "data_offsets": [8, 24]},
}
_BACKWARD_HEADER: Final = {
    "indices": {"dtype": "I64", "shape": [2, 1], "data_offsets": [0, 16]},
    "grad_output": {"dtype": "F32", "shape": [2, 4], "data_offsets": [16, 48]},
}
_ELEMENTS_HEADER: Final = {
    "data": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]},
    "indices": {"dtype": "I64", "shape": [2], "data_offsets": [32, 48]},
    "updates": {"dtype": "F32", "shape": [2], "data_offsets": [48, 56]},
}
_BAG_HEADER: Final = {
    "__metadata__": {"lookup": '{"features": [{"tensor": "t0", "pooling": "sum"}], "concat": false}'},
    "0.indices": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
    "0.offsets": {"dtype": "I64", "shape": [1], "data_offsets": [16, 24]},
    "0.weights": {"dtype": "F32", "shape": [2], "data_offsets": [24, 32]},
}
_PAIR: Final = struct.pack("<qq", 3, 7)
_SAFETENSORS: Final[list[tuple[str, str, dict[str, Any], bytes]]] = [
    ("POST", "/gathernd", _GATHER_HEADER, _ARRAY + _PAIR),
    ("POST", f"/gathernd?tensor={RESIDENT}", _LOOKUP_HEADER, _PAIR),
    ("POST", f"/gather?axis=0&tensor={RESIDENT}", _LOOKUP_HEADER, _PAIR),
    ("POST", "/gathernd?batch_dims=1", _GATHER_HEADER, _ARRAY + _PAIR),
    ("POST", "/gathernd/backward?data_shape=8,4&sparse=true", _BACKWARD_HEADER, _PAIR + _ARRAY[:32]),
    ("POST", f"/gathernd/backward?tensor={RESIDENT}&lda_coeff=-0.5", _BACKWARD_HEADER, _PAIR + _ARRAY[:32]),
    ("POST", "/scatter_elements?axis=0&reduction=mul", _ELEMENTS_HEADER, _ARRAY[:32] + _PAIR + _ARRAY[:8]),
    ("POST", "/lookup", _BAG_HEADER, _PAIR + bytes(8) + _ARRAY[:8]),
    ("PUT", "/tensors/t{}", _TABLE_HEADER, _ARRAY),
    ("POST", f"/tensors/{RESIDENT}/scatter?reduction=add", _SCATTER_HEADER, struct.pack("<q", 2) + _ARRAY[:16]),
]
_LENGTHS: Final = [0, 1, 7, 8, 9, 2**20, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1]


def safetensors_body(source: Random) -> Body:
    """A request in safetensors that was valid once."""
    method, path, header, blob = source.choice(_SAFETENSORS)
    chance = source.random()
    if chance < 0.15:
        content = _safetensors(header, blob)
    elif chance < 0.4:
        content = flipped(_safetensors(header, blob), source)
    elif chance < 0.8:
        content = _safetensors(misfielded(header, source), blob)
    elif chance < 0.9:
        content = _safetensors(header, blob)
        content = struct.pack("<Q", source.choice(_LENGTHS)) + content[8:]
    else:
        content = _safetensors(header, source.choice((b"", blob[:-1], blob + b"\x00", blob * 3)))
    return Body(method, path.format(source.randrange(8)), content, ["Content-Type: application/x-safetensors"])


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


_INFER: Final[list[tuple[str, dict[str, Any], bytes]]] = [
    ("/v2/models/gathernd/infer", {
        "inputs": [
            {"name": "data", "datatype": "FP32", "shape": [8, 4], "parameters": {"binary_data_size": 128}},
            {"name": "indices", "datatype": "INT64", "shape": [2, 1], "parameters": {"binary_data_size": 16}},
        ], "parameters": {"binary_data_output": True},
    }, _ARRAY + _PAIR),
    (f"/v2/models/{RESIDENT}/infer", {
        "inputs": [{"name": "indices", "datatype": "INT64", "shape": [2, 1], "parameters": {"binary_data_size": 16}}],
        "outputs": [{"name": "output", "parameters": {"binary_data": True}}], "id": "b",
    }, _PAIR),
    ("/v2/models/gather/infer", {
        "inputs": [
            {"name": "data", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 11}},
            {"name": "indices", "datatype": "INT64", "shape": [1], "data": [1]},
        ],
    }, struct.pack("<I", 1) + b"a" + struct.pack("<I", 2) + b"bc"),
]  # fmt: skip
_SIZES: Final = ["0", "-1", "+5", " 7", "1e2", "0x10", "99999999999999999999", "", "1, 1", "\xb2", "4294967296"]


def infer_body(source: Random) -> Body:
    """An inference request with binary tensors that was valid once."""
    path, document, blob = source.choice(_INFER)
    head = json.dumps(misfielded(document, source) if source.random() < 0.5 else document).encode()
    size = str(len(head))
    chance = source.random()
    content = head + blob
    if chance < 0.4:
        content = flipped(content, source)
    elif chance < 0.5:
        size = str(len(head) + source.randint(-9, 9))
    elif chance < 0.6:
        size = source.choice(_SIZES)
    elif chance < 0.7:
        content = head + source.choice((b"", blob[:-1], blob + b"\x00", blob * 2))
    return Body("POST", path, content, [f"Inference-Header-Content-Length: {size}"])


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
    "br",
    "gzip, gzip",
    "identity, gzip",
    "zstd",
    "compress",
    "x-gzip",
    "GZIP",
    "",
    "gzip;q=1",
    "\xff",
]


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
    made = json_body(source) if source.random() < 0.5 else infer_body(source)
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
    numbers = {"data": _tensor("float64", [500_000], [0.5] * 500_000), "indices": _tensor("int64", [1, 1], [1])}
    bombs = [Body("POST", "/gathernd", content, [f"Content-Encoding: {name}"]) for name, content in _bombs()]
    fields = ["Content-Encoding: gzip", "Content-Type: application/octet-stream"]
    return [
        *bombs,
        Body("PUT", "/tensors/t9?dtype=int8&shape=7000000", _bombs()[0][1], fields),
        Body("POST", "/gathernd?tensor=good", _safetensors(header, rows), ["Content-Type: application/x-safetensors"]),
        Body("POST", "/gathernd", json.dumps(numbers, separators=(",", ":")).encode()),
        Body("GET", "/tensors/good/content", b""),
    ]


def base64_body(source: Random) -> Body:
    """Base64 that is broken, of the wrong length, or not of its type."""
    dtype, width = source.choice((("bool", 1), ("float32", 4), ("string", 5), ("complex128", 16), ("bfloat16", 2)))
    text = b64encode(source.randbytes(width * source.randint(0, 5))).decode()
    if source.random() < 0.5:
        at = source.randint(0, len(text))
        text = text[:at] + source.choice(("=", "!", "\n", " ", "-_", "\u00e4", "====", "A", "\x00")) + text[at:]
    data = {"dtype": dtype, "shape": [source.choice((0, 1, 2, 4, 2**62))], "base64": text}
    return Body("POST", "/gathernd", json.dumps({"data": data, "indices": _tensor("int64", [1, 1], [0])}).encode())


BODIES: Final[list[tuple[Callable[[Random], Body], int]]] = [
    (json_body, 40), (safetensors_body, 15), (npy_body, 8), (raw_body, 7), (infer_body, 15), (packed_body, 10),
    (base64_body, 5),
]  # fmt: skip
"""Kinds of bodies, and how often each is to come."""
