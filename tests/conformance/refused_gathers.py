"""Gathers that break a rule of their operator, in each dialect, and what each must be told."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from app.operators.registry import OPERATORS
from tests.conformance.cases import Case, at, refused
from tests.http.forms import FLOAT8, TYPES, int64, tensor
from tests.http.rules import DIALECTS, zero

DATA = tensor("float32", [2, 2], [0, 1, 2, 3])
GOOD = int64([2, 2], [0, 0, 1, 1])


def body(data: Any = DATA, indices: Any = GOOD, **more: Any) -> dict[str, Any]:
    return {"data": data, "indices": indices, **more}


def bad(data: dict[str, Any], code: str, places: list[dict[str, Any]]) -> Case:
    """A case whose data is at fault."""
    return refused(code, body(data, int64([1, 1], [0])), places)


def _types() -> Iterator[Case]:
    """Each type of data and of indices that a dialect does not take."""
    for (path, dialect), (types, index_types, _) in DIALECTS.items():
        more = {"dialect": dialect} | ({} if path == "/gathernd" else {"axis": 0})
        for wrong, taken in (("data", types), ("indices", index_types)):
            for dtype in (*TYPES, *FLOAT8):
                if dtype not in taken:
                    used = {"data": "int8", "indices": "int64", wrong: dtype}
                    given = {role: tensor(kind, [1, 1], [zero(kind)]) for role, kind in used.items()}
                    yield refused("unsupported_dtype", given | more, at(f"/{wrong}/dtype"), path, (dialect, None))


DTYPES = [
    bad(tensor("float33", [1], [0]), "unsupported_dtype", at("/data/dtype")),
    bad(tensor("Float32", [1], [0]), "unsupported_dtype", at("/data/dtype")),
    bad(tensor("", [1], [0]), "unsupported_dtype", at("/data/dtype")),
    refused("unsupported_dtype", body(indices=tensor("long", [1, 1], [0])), at("/indices/dtype")),
    *_types(),
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
COUNTS = [
    bad(tensor("int32", shape, values), "element_count_mismatch", at("/data/values"))
    for shape, values in (
        ([2, 2], [1, 2, 3]),
        ([2, 2], [1, 2, 3, 4, 5]),
        ([2, 2], []),
        ([0], [1]),
        ([], []),
        ([], [1, 2]),
    )
]
DEVICES = [
    refused("device_unavailable", body(device="gpu"), at("/device")),
    refused("device_unavailable", body(indices=int64([1], [0]), device="gpu"), at("/device"), "/gather"),
]
_RANK_RULE = {"onnx-13": "1", "onnx-12": "1", "onnx-11": "1", "openvino-8": None}
RULES = [
    *(
        refused(
            "rank_too_small",
            body(tensor("int8", [], [1]), int64([1], [0]), dialect=dialect),
            at("/data/shape"),
            rule=(dialect, clause),
        )
        for dialect, clause in _RANK_RULE.items()
    ),
    *(
        refused(
            "rank_too_small",
            body(DATA, int64([], [0]), dialect=dialect),
            at("/indices/shape"),
            rule=(dialect, clause),
        )
        for dialect, clause in _RANK_RULE.items()
    ),
    *(
        refused(
            "rank_too_small",
            body(tensor("int8", [], [1]), int64([], [0]), dialect=dialect, axis=0),
            at("/data/shape"),
            "/gather",
            rule=(dialect, None),
        )
        for dialect in OPERATORS["gather"].dialects
    ),
    *(
        refused(
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
    refused(
        "batch_dims_out_of_range",
        body(batch_dims=1, dialect="onnx-11"),
        at("/batch_dims", value=1, allowed=[0, 0]),
        rule=("onnx-11", None),
    ),
    *(
        refused(
            "batch_shape_mismatch",
            body(tensor("int8", [2, 3, 1], [0] * 6), int64([2, 4, 1], [0] * 8), batch_dims=2, dialect=dialect),
            at("/indices/shape", value=4, axis=1, size=3, allowed=None),
            rule=(dialect, clause),
        )
        for dialect, clause in (("onnx-13", "2"), ("onnx-12", "2"), ("openvino-8", None))
    ),
    *(
        refused(
            "index_depth_out_of_range",
            body(DATA, int64([1, depth], [0] * depth), dialect=dialect),
            at("/indices/shape", value=depth, allowed=[1, 2]),
            rule=(dialect, clause),
        )
        for dialect, clause in (("onnx-13", "4"), ("onnx-12", "4"), ("onnx-11", "2"), ("openvino-8", None))
        for depth in (0, 3)
    ),
    *(
        refused(
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
        refused(
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
    refused(
        "batch_shape_mismatch",
        body(tensor("int8", [2, 3, 1], [0] * 6), int64([2, 4], [0] * 8), axis=2, batch_dims=2, dialect="openvino-8"),
        at("/indices/shape", value=4, axis=1, size=3, allowed=None),
        "/gather",
        rule=("openvino-8", None),
    ),
    *(
        case
        for dialect, row in OPERATORS["gather_elements"].dialects.items()
        for allowed in ([-3 if row.wrap else 0, 2],)
        for case in (
            refused(
                "rank_too_small",
                body(tensor("int8", [], [1]), int64([], [0]), axis=0, dialect=dialect),
                at("/data/shape"),
                "/gather_elements",
                rule=(dialect, None),
            ),
            *(
                refused(
                    "rank_mismatch",
                    body(DATA, indices, axis=0, dialect=dialect),
                    at("/indices/shape", value=rank, allowed=[2, 2]),
                    "/gather_elements",
                    rule=(dialect, None),
                )
                for indices, rank in ((int64([], [0]), 0), (int64([1], [0]), 1), (int64([1, 1, 1], [0]), 3))
            ),
            *(
                refused(
                    "axis_out_of_range",
                    body(DATA, int64([1, 1], [0]), axis=given, dialect=dialect),
                    at("/axis", value=shown, allowed=[-2, 1]),
                    "/gather_elements",
                    rule=(dialect, None),
                )
                for given, shown in ((2, 2), (-3, -3), (2**63, 2**63), (-(2**63) - 1, str(-(2**63) - 1)))
            ),
            refused(
                "indices_shape_mismatch",
                body(DATA, int64([3, 1], [0, 0, 0]), axis=-1, dialect=dialect),
                at("/indices/shape", value=3, axis=0, size=2, allowed=[2 if row.equal_sizes else 0, 2]),
                "/gather_elements",
                rule=(dialect, None),
            ),
            refused(
                "index_out_of_bounds",
                body(tensor("int8", [2, 3], [0] * 6), int64([2, 2], [0, 0, 5, -4]), axis=1, dialect=dialect),
                [
                    *at("/indices/values/2", position=[1, 0], value=5, axis=1, size=3, allowed=allowed),
                    *at("/indices/values/3", position=[1, 1], value=-4, axis=1, size=3, allowed=allowed),
                ],
                "/gather_elements",
                rule=(dialect, None),
                total=2,
            ),
        )
    ),
    refused(
        "indices_shape_mismatch",
        body(tensor("int8", [2, 3], [0] * 6), int64([2, 1], [0, 0]), axis=0, dialect="openvino-6"),
        at("/indices/shape", value=1, axis=1, size=3, allowed=[3, 3]),
        "/gather_elements",
        rule=("openvino-6", None),
    ),
    refused(
        "index_out_of_bounds",
        body(tensor("int8", [2, 1], [0] * 2), int64([1, 1], [-1]), axis=0, dialect="openvino-6"),
        at("/indices/values/0", position=[0, 0], value=-1, axis=0, size=2, allowed=[0, 1]),
        "/gather_elements",
        rule=("openvino-6", None),
    ),
]
_OUT = {"onnx-13": "5", "onnx-12": "5", "onnx-11": "3"}
BOUNDS = [
    *(
        refused(
            "index_out_of_bounds",
            body(DATA, int64([2, 2], [0, 0, 5, 1]), dialect=dialect),
            at("/indices/values/2", position=[1, 0], value=5, axis=0, size=2, allowed=[-2, 1]),
            rule=(dialect, clause),
            total=1,
        )
        for dialect, clause in _OUT.items()
    ),
    refused(
        "index_out_of_bounds",
        body(DATA, int64([1, 2], [0, -1]), dialect="openvino-8"),
        at("/indices/values/1", position=[0, 1], value=-1, axis=1, size=2, allowed=[0, 1]),
        rule=("openvino-8", None),
    ),
    refused(
        "index_out_of_bounds",
        body(tensor("int8", [2, 3, 4], [0] * 24), int64([2, 1, 2], [0, 0, 2, 4]), batch_dims=1),
        at("/indices/values/3", position=[1, 0, 1], value=4, axis=2, size=4, allowed=[-4, 3]),
        rule=("onnx-13", "5"),
    ),
    *(
        refused(
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
    refused(
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
    refused(
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
    refused(
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
    refused(
        "index_out_of_bounds",
        body(tensor("int8", [2], [0] * 2), int64([], [2])),
        at("/indices/values/0", position=[], value=2, axis=0, size=2, allowed=[-2, 1]),
        "/gather",
        rule=("onnx-13", None),
    ),
    refused(
        "index_out_of_bounds",
        body(tensor("string", [2], ["a", "b"]), int64([1, 1], [2])),
        at("/indices/values/0", position=[0, 0], value=2, axis=0, size=2, allowed=[-2, 1]),
        rule=("onnx-13", "5"),
    ),
]
LIMITS = [
    refused(
        "limit_exceeded",
        body(tensor("int8", [1] * 33, [0]), int64([1, 1], [0])),
        at("/data/shape"),
        facts={"limit": "rank", "maximum": 32},
    ),
    refused(
        "limit_exceeded",
        body(DATA, int64([1] * 33, [0])),
        at("/indices/shape"),
        facts={"limit": "rank", "maximum": 32},
    ),
    refused(
        "limit_exceeded",
        body(tensor("int8", [1] * 20, [0]), int64([1] * 20, [0])),
        at("/indices/shape"),
        facts={"limit": "rank", "maximum": 32},
    ),
    refused(
        "limit_exceeded",
        body(tensor("int8", [2**63, 0], []), int64([0, 1], [])),
        at("/data/shape"),
        facts={"limit": "dimension", "maximum": 2**63 - 1},
    ),
    refused(
        "limit_exceeded",
        body(tensor("int16", [2**62, 0, 2], []), int64([0, 1], [])),
        at("/data/shape"),
        facts={"limit": "bytes", "maximum": 2**63 - 1},
    ),
    refused(
        "output_too_large",
        body(np.zeros((1, 2**15), np.int8), np.zeros((2**15 + 1, 1), np.int64)),
        at("/indices/shape"),
        facts={"limit": "output_bytes", "maximum": 2**30},
    ),
]
REFUSED_GATHERS = [*DTYPES, *VALUES, *COUNTS, *DEVICES, *RULES, *BOUNDS, *LIMITS]
