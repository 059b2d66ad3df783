"""Gathers with types, values, counts, devices and sizes that are refused, and what each must be told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

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
    refused("device_unavailable", body(indices=indices, device="gpu"), at("/device"), path)
    for path, indices in (("/gathernd", GOOD), ("/gather", int64([1], [0])), ("/gather_elements", GOOD))
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
REFUSED_GATHERS = [*DTYPES, *VALUES, *COUNTS, *DEVICES, *LIMITS]
