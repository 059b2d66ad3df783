"""Requests that break a rule, and the error that each must get: the code, the clause and the place."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from struct import pack
from typing import Any

from tests.http.forms import int64, nested, tensor

DATA = tensor("float32", [2, 2], [0, 1, 2, 3])
GOOD = int64([2, 2], [0, 0, 1, 1])


@dataclass
class Case:
    """A request, and the code and places that it must answer; `rule` is dialect and clause of a broken rule."""

    code: str
    body: Any
    errors: list[dict[str, Any]] | None = field(default_factory=list)
    path: str = "/gathernd"
    rule: tuple[str, str | None] | None = None
    total: int | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


def body(data: Any = DATA, indices: Any = GOOD, **more: Any) -> dict[str, Any]:
    return {"data": data, "indices": indices, **more}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in body().items() if key != name}


def at(pointer: str, **members: Any) -> list[dict[str, Any]]:
    return [{"pointer": pointer, **members}]


def bad(data: dict[str, Any], code: str, errors: list[dict[str, Any]]) -> Case:
    """A case whose data is at fault."""
    return Case(code, body(data, int64([1, 1], [0])), errors)


def fields(pointer: str, name: str, *values: Any, path: str = "/gathernd") -> list[Case]:
    """Cases in which the field `name` of the request has each of `values`."""
    return [Case("invalid_field", body(**{name: value}), at(pointer), path) for value in values]


def members(name: str, *values: Any) -> list[Case]:
    """Cases in which the member `name` of the data has each of `values`."""
    return [Case("invalid_field", body({**DATA, name: value}), at(f"/data/{name}")) for value in values]


def strings(*texts: bytes) -> str:
    return b64encode(b"".join(pack("<I", len(text)) + text for text in texts)).decode()


SIZES: list[Any] = [-1, 1.5, "2", None, True, [2]]
BASE64: list[Any] = [None, 1, [], "!", "AA", "AA=", "AA= =", "AA==\n", "A-__", "AA==AA==", "é"]
NAMES: list[Any] = [None, 1, "", "a/b", ".a", "a" * 129, "a b", "ä"]
NO_PLACE = None
_BIG_INT = '{"data":{"dtype":"%s","shape":[1],"values":[%s]},"indices":{"dtype":"int64","shape":[1,1],"values":[0]}}'
_DEEP = b"[" * 600 + b"]" * 600

MALFORMED = [
    Case("malformed_request", sent, NO_PLACE)
    for sent in (
        b"", b" ", b"{", b"nonsense", b'{"data": {"dtype": "int8"', b"{}{}", b"{}x", b"[1,]", b"{'a': 1}",
        b'{"data": 01}', b'{"data": +1}', b'{"data": .5}', b'{"data": 1.}', b'{"data": NaN}', b'{"data": -Infinity}',
        b'{"data": Infinity}', b'{"a": 1, "a": 1}', b'{"a": {"b": 1, "b": 2}}', b'{"\\u0061": 1, "a": 1}',
        b'{"data": "\xff"}', b'{"a": "\x01"}', b"\xef\xbb\xbf{}", b'"\\x"', b"\x00{}", b"{}\x00", _DEEP,
        '{"data": {}}'.encode("utf-16"), b'{"a": tru}', b'{"a": "\\ud8"}', b"// {}\n{}",
        b'{"data":{"dtype":"float32","shape":[1],"values":[NaN]},"indices":{"dtype":"int64","shape":[1,1],"values":[0]}}',
        b'{"data":{"dtype":"float32","dtype":"int8","shape":[1],"values":[1]},"indices":{}}',
    )
]  # fmt: skip
FIELDS = [
    *(Case("invalid_field", sent, at("")) for sent in (b"[]", b"null", b"3", b'"text"', b"true")),
    Case("invalid_field", {}, at("/data")),
    Case("invalid_field", without("data"), at("/data")),
    Case("invalid_field", without("indices"), at("/indices")),
    *fields("/batchdims", "batchdims", 1),
    *fields("/axis", "axis", 0),
    *fields("/a~1b~0c", "a/b~c", 1),
    *fields("/batch_dims", "batch_dims", 0, 1, None, path="/gather"),
    *(
        Case("invalid_field", body(dialect=dialect, axis=1, batch_dims=0), at("/batch_dims"), "/gather")
        for dialect in ("onnx-13", "onnx-11", "onnx-1")
    ),
    *(
        Case("invalid_field", body(dialect="openvino-8", axis=0, batch_dims=given), at("/batch_dims"), "/gather")
        for given in (None, 0.5, "1", True)
    ),
    Case("invalid_field", body(dialect="openvino-8", batch_dims=0), at("/axis"), "/gather"),
    Case("invalid_field", body(dialect="openvino-6"), at("/axis"), "/gather_elements"),
    Case("invalid_field", body(dialect="openvino-6", axis=0, batch_dims=0), at("/batch_dims"), "/gather_elements"),
    Case(
        "invalid_field",
        body(dialect="openvino-8", axis=0, out_of_bounds="clip", fill_value=1),
        at("/fill_value"),
        "/gather",
    ),
    *fields("/data", "data", None, 1, "x", [], [1, 2], True),
    *fields("/indices", "indices", None, 1, "x", [], False),
    *fields("/indices/tensor", "indices", {"tensor": "x"}),
    *fields("/data/dtype", "data", {"shape": [1], "values": [1]}),
    *members("dtype", None, 1, True, [], {}),
    *members("type", "float32"),
    *members("shape", None, 4, "2,2", {}, True),
    *(Case("invalid_field", body({**DATA, "shape": [2, size]}), at("/data/shape/1")) for size in SIZES),
    *fields("/data", "data", {"dtype": "int8", "shape": [1]}, {**DATA, "base64": "AAAA"}),
    *members("values", None, {}),
    *(
        Case("invalid_field", body({"dtype": "int8", "shape": [1], "base64": text}), at("/data/base64"))
        for text in BASE64
    ),
    *fields("/data/shape", "data", {"dtype": "int8", "base64": "AA=="}),
    *fields("/data/dtype", "data", {"tensor": "items", "dtype": "int8"}),
    *(Case("invalid_field", body({"tensor": name}), at("/data/tensor")) for name in NAMES),
    *fields("/dialect", "dialect", None, 13, "", "onnx-1", "onnx-14", "ONNX-13", "openvino-5", [], {}),
    *fields("/dialect", "dialect", "onnx-12", "onnx-7", 1, path="/gather"),
    *fields("/device", "device", None, "", "tpu", "GPU", "cuda:0", 0),
    *fields("/output_encoding", "output_encoding", None, "json", "raw", 64),
    Case("invalid_field", body(), at("/query/batch_dims"), "/gathernd?batch_dims=1"),
    Case("invalid_field", body(), at("/query/axis"), "/gather?axis=1"),
    Case("invalid_field", body(), at("/query/x"), "/gathernd?x"),
    Case("invalid_field", body(), at("/query/a~1b"), "/gathernd?a%2Fb=1&c=2"),
]
VALUES = [
    Case("value_not_representable", (_BIG_INT % pair).encode(), at("/data/values/0", position=[0], value=shown))
    for pair, shown in (
        (("float64", "1e400"), "1e400"),
        (("float64", "-1e400"), "-1e400"),
        (("float32", "1e400"), "1e400"),
        (("int64", "1e400"), "1e400"),
        (("int64", "1e19"), 1e19),
        (("uint8", "1e-1"), 0.1),
    )
]
VALUES += [
    bad(
        tensor("string", [1], ["x"]) | {"values": ["\ud800"]},
        "value_not_representable",
        at("/data/values/0", position=[0], value="?"),
    ),
    bad(
        nested(tensor("uint8", [2, 2], [0, 1, 2, 256])),
        "value_not_representable",
        at("/data/values/1/1", position=[1, 1], value=256),
    ),
    bad(
        tensor("complex64", [2], [[0, 0], [0, "x"]]),
        "value_not_representable",
        at("/data/values/1/1", position=[1], value="x"),
    ),
    bad(
        nested(tensor("complex64", [1, 2], [[0, 0], [1e39, 0]])),
        "value_not_representable",
        at("/data/values/0/1/0", position=[0, 1], value=1e39),
    ),
    bad(
        {"dtype": "bool", "shape": [2, 2], "base64": b64encode(b"\x00\x01\x02\x03").decode()},
        "value_not_representable",
        at("/data/base64", position=[1, 0], value=2),
    ),
    bad(
        {"dtype": "string", "shape": [2], "base64": strings(b"a", b"\xff")},
        "value_not_representable",
        at("/data/base64", position=[1]),
    ),
    Case(
        "value_not_representable",
        body(indices=int64([1, 2], [0, 0.5])),
        at("/indices/values/1", position=[0, 1], value=0.5),
    ),
    bad(
        tensor("uint8", [], 256),
        "value_not_representable",
        at("/data/values", position=[], value=256),
    ),
]
COUNTS = [
    bad(given, "element_count_mismatch", at(f"/data/{'base64' if 'base64' in given else 'values'}"))
    for given in (
        tensor("int32", [2, 2], [[1, 2], [3]]),
        tensor("int32", [2, 2], [[1, 2, 3], [4]]),
        tensor("int32", [2, 2], [[1, 2], 3, 4]),
        tensor("int32", [2, 2], [1, [2], 3, 4]),
        tensor("int32", [2, 2], [[1, 2, 3, 4]]),
        tensor("int32", [2, 2], [[[1, 2], [3, 4]]]),
        tensor("int32", [4], [[1, 2], [3, 4]]),
        tensor("int32", [2, 0], [[], [], []]),
        tensor("int32", [2, 0], [[]]),
        tensor("int32", [2, 0, 3], [[[]], [[]]]),
        tensor("int32", [2], 1),
        tensor("int32", [3], [[1, 2], [3]]),
        tensor("int32", [4, 1], [[1, 2], [3, 4]]),
        tensor("int32", [2, 2], [[1], [2], [3], [4]]),
        tensor("int32", [2, 2], [[None, 2], [3]]),
        tensor("int32", [], [[5]]),
        tensor("int32", [], []),
        tensor("int32", [1], [[5]]),
        tensor("int32", [0], [0]),
        tensor("int32", [0, 2], [[], []]),
        {"dtype": "int32", "values": [[], [1]]},
        {"dtype": "int32", "values": [[], [[]]]},
        {"dtype": "complex64", "values": 5},
        {"dtype": "int32", "values": [[1, 2], [3]]},
        {"dtype": "int32", "values": [1, [2]]},
        {"dtype": "complex64", "values": [1, 2, 3]},
        tensor("complex64", [2], [1, 2]),
        tensor("complex64", [2], [1, 2, 3, 4]),
        tensor("complex64", [2], [[1, 2], [3]]),
        tensor("complex64", [1], [[1, 2, 3]]),
        {"dtype": "int16", "shape": [2], "base64": "AAAA"},
        {"dtype": "int16", "shape": [2], "base64": ""},
        {"dtype": "int16", "shape": [0], "base64": "AAA="},
        {"dtype": "float64", "shape": [2**62, 4], "base64": "AAAA"},
        {"dtype": "string", "shape": [2], "base64": strings(b"a")},
        {"dtype": "string", "shape": [1], "base64": strings(b"a", b"b")},
        {"dtype": "string", "shape": [1], "base64": strings(b"abcd")[:8]},
        {"dtype": "string", "shape": [1], "base64": b64encode(b"\xff\xff\xff\xffab").decode()},
        {"dtype": "string", "shape": [1], "base64": "AAAA"},
    )
]
OTHERS = [
    Case("tensor_not_found", body({"tensor": "itmes"}), at("/data/tensor")),
    Case("unsupported_media_type", b"data=1", NO_PLACE, headers={"content-type": "application/x-www-form-urlencoded"}),
    Case("unsupported_media_type", b"{}", NO_PLACE, headers={"content-encoding": "br"}),
    Case("payload_too_large", b" " * (2**26 + 1), NO_PLACE, facts={"limit": "body_bytes", "maximum": 2**26}),
    Case("not_found", {}, NO_PLACE, "/gather_nd"),
    Case("method_not_allowed", {}, NO_PLACE, "/readyz"),
    Case("forbidden", body(), NO_PLACE, headers={"origin": "https://example.com"}),
]
PROVOKED = [*MALFORMED, *FIELDS, *VALUES, *COUNTS, *OTHERS]
