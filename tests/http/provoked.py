"""Requests that break a rule, and the error that each must get: the code, the clause and the place."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, field
from math import prod
from struct import pack
from typing import Any

from app.operators.registry import OPERATORS
from tests.http.forms import int64, nested, packed, tensor

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
DTYPES = [
    bad(tensor("float33", [1], [0]), "unsupported_dtype", at("/data/dtype")),
    bad(tensor("Float32", [1], [0]), "unsupported_dtype", at("/data/dtype")),
    bad(tensor("", [1], [0]), "unsupported_dtype", at("/data/dtype")),
    Case("unsupported_dtype", body(indices=tensor("long", [1, 1], [0])), at("/indices/dtype")),
    *(
        Case(
            "unsupported_dtype",
            body(indices=tensor(dtype, [1, 1], [0]), dialect=dialect),
            at("/indices/dtype"),
            rule=(dialect, None),
        )
        for dialect in ("onnx-13", "onnx-12", "onnx-11")
        for dtype in ("int32", "uint64", "int8", "float32", "float64")
    ),
    *(
        Case(
            "unsupported_dtype",
            body(indices=tensor(dtype, [1, 1], values), dialect="openvino-8"),
            at("/indices/dtype"),
            rule=("openvino-8", None),
        )
        for dtype, values in (("bool", [True]), ("float64", [0]), ("string", ["0"]), ("complex64", [[0, 0]]))
    ),
    *(
        Case(
            "unsupported_dtype",
            body(indices=tensor(dtype, [1], [0]), dialect=dialect),
            at("/indices/dtype"),
            "/gather",
            rule=(dialect, None),
        )
        for dialect in ("onnx-13", "onnx-11", "onnx-1")
        for dtype in ("uint32", "int16", "uint64")
    ),
    *(
        Case(
            "unsupported_dtype",
            body(tensor("bfloat16", [1], [0]), int64([1, 1], [0]), dialect=dialect),
            at("/data/dtype"),
            path,
            rule=(dialect, None),
        )
        for path, dialect in (
            ("/gathernd", "onnx-12"),
            ("/gathernd", "onnx-11"),
            ("/gather", "onnx-11"),
            ("/gather", "onnx-1"),
        )
    ),
    *(
        Case(
            "unsupported_dtype",
            body(tensor(dtype, [1], [[0, 0]]), int64([1, 1], [0]), dialect="openvino-8"),
            at("/data/dtype"),
            rule=("openvino-8", None),
        )
        for dtype in ("complex64", "complex128")
    ),
]
VALUES = [
    bad(
        tensor(dtype, [2], [good, value]),
        "value_not_representable",
        at("/data/values/1", position=[1], **({} if shown is None else {"value": shown})),
    )
    for dtype, good, value, shown in (
        ("uint8", 1, 300, 300),
        ("uint8", 1, -1, -1),
        ("int8", 1, 128, 128),
        ("int8", 1, 1.5, 1.5),
        ("int64", 1, 2**63, 2**63),
        ("int64", 1, -(2**63) - 1, "-9223372036854775809"),
        ("uint64", 1, 2**64, "18446744073709551616"),
        ("int32", 1, True, True),
        ("int32", 1, "1", "1"),
        ("int32", 1, None, None),
        ("int32", 1, {}, None),
        ("bool", True, 1, 1),
        ("bool", True, "true", "true"),
        ("bool", True, None, None),
        ("float16", 1, 65520, 65520),
        ("bfloat16", 1, 3.4e38, 3.4e38),
        ("float32", 1, 3.5e38, 3.5e38),
        ("float32", 1, "nan", "nan"),
        ("float32", 1, "inf", "inf"),
        ("float32", 1, "+Infinity", "+Infinity"),
        ("float64", 1, False, False),
        ("float64", 1, None, None),
        ("string", "a", 1, 1),
        ("string", "a", None, None),
        ("string", "a", True, True),
    )
]
VALUES += [
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
        tensor("int32", [2, 2], [1, 2, 3]),
        tensor("int32", [2, 2], [1, 2, 3, 4, 5]),
        tensor("int32", [2, 2], []),
        tensor("int32", [0], [1]),
        tensor("int32", [], []),
        tensor("int32", [], [1, 2]),
        tensor("int32", [2, 2], [[1, 2], [3]]),
        tensor("int32", [2, 2], [[1, 2, 3], [4]]),
        tensor("int32", [2, 2], [[1, 2], 3, 4]),
        tensor("int32", [2, 2], [1, [2], 3, 4]),
        tensor("int32", [2, 2], [[1, 2, 3, 4]]),
        tensor("int32", [2, 2], [[[1, 2], [3, 4]]]),
        tensor("int32", [2, 2], [[1], [2], [3], [4]]),
        tensor("int32", [4], [[1, 2], [3, 4]]),
        tensor("int32", [2, 0], [[], [], []]),
        tensor("int32", [2, 0], [[]]),
        tensor("int32", [2, 0, 3], [[[]], [[]]]),
        tensor("int32", [2], 1),
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
_RANK_RULE = {"onnx-13": "1", "onnx-12": "1", "onnx-11": "1", "openvino-8": None}
RULES = [
    *(
        Case(
            "rank_too_small",
            body(tensor("int8", [], [1]), int64([1], [0]), dialect=dialect),
            at("/data/shape"),
            rule=(dialect, clause),
        )
        for dialect, clause in _RANK_RULE.items()
    ),
    *(
        Case(
            "rank_too_small",
            body(DATA, int64([], [0]), dialect=dialect),
            at("/indices/shape"),
            rule=(dialect, clause),
        )
        for dialect, clause in _RANK_RULE.items()
    ),
    *(
        Case(
            "rank_too_small",
            body(tensor("int8", [], [1]), int64([], [0]), dialect=dialect, axis=0),
            at("/data/shape"),
            "/gather",
            rule=(dialect, None),
        )
        for dialect in OPERATORS["gather"].dialects
    ),
    *(
        Case(
            "batch_dims_out_of_range",
            body(batch_dims=given, dialect=dialect),
            at("/batch_dims", value=shown, allowed=allowed),
            rule=(dialect, clause),
        )
        for dialect, clause, allowed in (
            ("onnx-13", "3", [0, 1]),
            ("onnx-12", "3", [0, 1]),
            ("onnx-11", None, [0, 0]),
            ("openvino-8", None, [0, 1]),
        )
        for given, shown in ((2, 2), (-1, -1), (2**63, 2**63), (-(2**63) - 1, str(-(2**63) - 1)), (10**30, str(10**30)))
    ),
    Case(
        "batch_dims_out_of_range",
        body(batch_dims=1, dialect="onnx-11"),
        at("/batch_dims", value=1, allowed=[0, 0]),
        rule=("onnx-11", None),
    ),
    *(
        Case(
            "batch_shape_mismatch",
            body(tensor("int8", [2, 3, 1], [0] * 6), int64([2, 4, 1], [0] * 8), batch_dims=2, dialect=dialect),
            at("/indices/shape", value=4, axis=1, size=3, allowed=None),
            rule=(dialect, clause),
        )
        for dialect, clause in (("onnx-13", "2"), ("onnx-12", "2"), ("openvino-8", None))
    ),
    *(
        Case(
            "index_depth_out_of_range",
            body(DATA, int64([1, depth], [0] * depth), dialect=dialect),
            at("/indices/shape", value=depth, allowed=[1, 2]),
            rule=(dialect, clause),
        )
        for dialect, clause in (("onnx-13", "4"), ("onnx-12", "4"), ("onnx-11", "2"), ("openvino-8", None))
        for depth in (0, 3)
    ),
    *(
        Case(
            "axis_out_of_range",
            body(DATA, int64([1], [0]), axis=given, dialect=dialect),
            at("/axis", value=shown, allowed=[-2, 1]),
            "/gather",
            rule=(dialect, None),
        )
        for dialect in OPERATORS["gather"].dialects
        for given, shown in ((2, 2), (-3, -3), (2**64, str(2**64)))
    ),
    *(
        Case(
            "batch_dims_out_of_range",
            body(
                tensor("int8", [2, 2, 2], [0] * 8),
                int64(shape, [0] * prod(shape)),
                axis=axis,
                batch_dims=given,
                dialect="openvino-8",
            ),
            at("/batch_dims", value=shown, allowed=allowed),
            "/gather",
            rule=("openvino-8", None),
        )
        for shape, axis, given, shown, allowed in (
            ([2, 2], 2, 3, 3, [-2, 2]),
            ([2, 2], 2, -3, -3, [-2, 2]),
            ([2, 2, 2, 2], 2, 2**63, 2**63, [-3, 3]),
            ([2, 2], 2, -(2**63) - 1, str(-(2**63) - 1), [-2, 2]),
            ([], 0, 1, 1, [0, 0]),
            ([2, 2], 1, 2, 2, [0, 1]),
            ([2, 2], -3, 1, 1, [0, 0]),
            ([2, 2], 0, -1, -1, [0, 0]),
            ([2, 2, 2, 2], 2, -1, -1, [0, 2]),
            ([2, 2, 2], 2, 3, 3, [0, 2]),
        )
    ),
    Case(
        "batch_shape_mismatch",
        body(tensor("int8", [2, 3, 1], [0] * 6), int64([2, 4], [0] * 8), axis=2, batch_dims=2, dialect="openvino-8"),
        at("/indices/shape", value=4, axis=1, size=3, allowed=None),
        "/gather",
        rule=("openvino-8", None),
    ),
    *(
        case
        for dialect in OPERATORS["gather_elements"].dialects
        for case in (
            Case(
                "rank_too_small",
                body(tensor("int8", [], [1]), int64([], [0]), dialect=dialect),
                at("/data/shape"),
                "/gather_elements",
                rule=(dialect, None),
            ),
            *(
                Case(
                    "rank_mismatch",
                    body(DATA, indices, dialect=dialect),
                    at("/indices/shape", value=rank, allowed=[2, 2]),
                    "/gather_elements",
                    rule=(dialect, None),
                )
                for indices, rank in ((int64([], [0]), 0), (int64([1], [0]), 1), (int64([1, 1, 1], [0]), 3))
            ),
            *(
                Case(
                    "axis_out_of_range",
                    body(DATA, int64([1, 1], [0]), axis=given, dialect=dialect),
                    at("/axis", value=shown, allowed=[-2, 1]),
                    "/gather_elements",
                    rule=(dialect, None),
                )
                for given, shown in ((2, 2), (-3, -3), (2**63, 2**63), (-(2**63) - 1, str(-(2**63) - 1)))
            ),
            Case(
                "indices_shape_mismatch",
                body(DATA, int64([3, 1], [0, 0, 0]), axis=-1, dialect=dialect),
                at("/indices/shape", value=3, axis=0, size=2, allowed=[0, 2]),
                "/gather_elements",
                rule=(dialect, None),
            ),
            Case(
                "index_out_of_bounds",
                body(tensor("int8", [2, 3], [0] * 6), int64([2, 2], [0, 0, 5, -4]), axis=1, dialect=dialect),
                [
                    *at("/indices/values/2", position=[1, 0], value=5, axis=1, size=3, allowed=[-3, 2]),
                    *at("/indices/values/3", position=[1, 1], value=-4, axis=1, size=3, allowed=[-3, 2]),
                ],
                "/gather_elements",
                rule=(dialect, None),
                total=2,
            ),
        )
    ),
]
_OUT = {"onnx-13": "5", "onnx-12": "5", "onnx-11": "3"}
BOUNDS = [
    *(
        Case(
            "index_out_of_bounds",
            body(DATA, int64([2, 2], [0, 0, 5, 1]), dialect=dialect),
            at("/indices/values/2", position=[1, 0], value=5, axis=0, size=2, allowed=[-2, 1]),
            rule=(dialect, clause),
            total=1,
        )
        for dialect, clause in _OUT.items()
    ),
    Case(
        "index_out_of_bounds",
        body(DATA, int64([1, 2], [0, -1]), dialect="openvino-8"),
        at("/indices/values/1", position=[0, 1], value=-1, axis=1, size=2, allowed=[0, 1]),
        rule=("openvino-8", None),
    ),
    Case(
        "index_out_of_bounds",
        body(DATA, nested(int64([2, 2], [0, 0, 5, 1]))),
        at("/indices/values/1/0", position=[1, 0], value=5, axis=0, size=2, allowed=[-2, 1]),
        rule=("onnx-13", "5"),
    ),
    Case(
        "index_out_of_bounds",
        body(DATA, packed(int64([2, 2], [0, 0, 5, 1]))),
        at("/indices/base64", position=[1, 0], value=5, axis=0, size=2, allowed=[-2, 1]),
        rule=("onnx-13", "5"),
    ),
    Case(
        "index_out_of_bounds",
        body(tensor("int8", [2, 3, 4], [0] * 24), int64([2, 1, 2], [0, 0, 2, 4]), batch_dims=1),
        at("/indices/values/3", position=[1, 0, 1], value=4, axis=2, size=4, allowed=[-4, 3]),
        rule=("onnx-13", "5"),
    ),
    *(
        Case(
            "index_out_of_bounds",
            body(tensor("int8", [2, 3], [0] * 6), int64([2], [0, value]), axis=axis, dialect=dialect),
            at("/indices/values/1", position=[1], value=value, axis=1, size=3, allowed=allowed),
            "/gather",
            rule=(dialect, None),
        )
        for axis in (1, -1)
        for dialect, value, allowed in (
            ("onnx-13", 3, [-3, 2]),
            ("onnx-13", -4, [-3, 2]),
            ("onnx-11", 3, [-3, 2]),
            ("onnx-1", -1, [0, 2]),
        )
    ),
    Case(
        "index_out_of_bounds",
        body(
            tensor("int8", [2, 2, 3], [0] * 12),
            int64([2, 2], [0, 1, 2, -4]),
            axis=-1,
            batch_dims=1,
            dialect="openvino-8",
            out_of_bounds="error",
        ),
        at("/indices/values/3", position=[1, 1], value=-4, axis=2, size=3, allowed=[-3, 2]),
        "/gather",
        rule=("openvino-8", None),
        total=1,
    ),
    Case(
        "index_out_of_bounds",
        body(
            tensor("int8", [2], [0] * 2),
            tensor("uint64", [2], [2**64 - 1, 1]),
            axis=0,
            dialect="openvino-8",
            out_of_bounds="error",
        ),
        at("/indices/values/0", position=[0], value=2**64 - 1, axis=0, size=2, allowed=[-2, 1]),
        "/gather",
        rule=("openvino-8", None),
    ),
    Case(
        "index_out_of_bounds",
        body(
            tensor("int8", [2, 0, 3], []),
            int64([2, 2], [0, 0, 3, 0]),
            axis=2,
            batch_dims=1,
            dialect="openvino-8",
            out_of_bounds="error",
        ),
        at("/indices/values/2", position=[1, 0], value=3, axis=2, size=3, allowed=[-3, 2]),
        "/gather",
        rule=("openvino-8", None),
    ),
    Case(
        "index_out_of_bounds",
        body(tensor("int8", [2], [0] * 2), int64([], [2])),
        at("/indices/values/0", position=[], value=2, axis=0, size=2, allowed=[-2, 1]),
        "/gather",
        rule=("onnx-13", None),
    ),
    Case(
        "index_out_of_bounds",
        body(tensor("string", [2], ["a", "b"]), int64([1, 1], [2])),
        at("/indices/values/0", position=[0, 0], value=2, axis=0, size=2, allowed=[-2, 1]),
        rule=("onnx-13", "5"),
    ),
]
LIMITS = [
    Case(
        "limit_exceeded",
        body(tensor("int8", [1] * 33, [0]), int64([1, 1], [0])),
        at("/data/shape"),
        facts={"limit": "rank", "maximum": 32},
    ),
    Case(
        "limit_exceeded",
        body(DATA, int64([1] * 33, [0])),
        at("/indices/shape"),
        facts={"limit": "rank", "maximum": 32},
    ),
    Case(
        "limit_exceeded",
        body(tensor("int8", [1] * 20, [0]), int64([1] * 20, [0])),
        at("/indices/shape"),
        facts={"limit": "rank", "maximum": 32},
    ),
    Case(
        "limit_exceeded",
        body(tensor("int8", [2**63, 0], []), int64([0, 1], [])),
        at("/data/shape"),
        facts={"limit": "dimension", "maximum": 2**63 - 1},
    ),
    Case(
        "limit_exceeded",
        body(tensor("int16", [2**62, 0, 2], []), int64([0, 1], [])),
        at("/data/shape"),
        facts={"limit": "bytes", "maximum": 2**63 - 1},
    ),
    Case(
        "output_too_large",
        body(packed(tensor("int8", [1, 2**15], [0] * 2**15)), packed(int64([2**15 + 1, 1], [0] * (2**15 + 1)))),
        at("/indices/shape"),
        facts={"limit": "output_bytes", "maximum": 2**30},
    ),
]
OTHERS = [
    Case("device_unavailable", body(device="gpu"), at("/device")),
    Case("device_unavailable", body(indices=int64([1], [0]), device="gpu"), at("/device"), "/gather"),
    Case("tensor_not_found", body({"tensor": "itmes"}), at("/data/tensor")),
    Case("unsupported_media_type", b"data=1", NO_PLACE, headers={"content-type": "application/x-www-form-urlencoded"}),
    Case("unsupported_media_type", b"{}", NO_PLACE, headers={"content-encoding": "br"}),
    Case("payload_too_large", b" " * (2**26 + 1), NO_PLACE, facts={"limit": "body_bytes", "maximum": 2**26}),
    Case("not_found", {}, NO_PLACE, "/gather_nd"),
    Case("method_not_allowed", {}, NO_PLACE, "/readyz"),
    Case("forbidden", body(), NO_PLACE, headers={"origin": "https://example.com"}),
]
PROVOKED = [*MALFORMED, *FIELDS, *DTYPES, *VALUES, *COUNTS, *RULES, *BOUNDS, *LIMITS, *OTHERS]
