"""The rules of the operators stated once more, from the design and the texts and from nothing in `app`.

`broken` judges each rule on its own, also where an earlier one is broken too, as far as that has a meaning: that is
how a test knows that a request breaks two rules at once, and which of them must be answered. `gathered` is the answer
where none is broken, by loops over coordinates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any, Literal

from tests.http.forms import COMPLEX, FLOAT8, FLOATS, INTEGERS, TYPES

Rule = Literal[
    "framing", "fields", "dtype", "count", "values", "data type", "index type", "rank", "batch_dims", "axis",
    "batch shape", "indices shape", "index depth", "limits", "device", "index values",
]  # fmt: skip
PRECEDENCE: tuple[Rule, ...] = Rule.__args__  # type: ignore[attr-defined]
CODES: dict[Rule, tuple[str, ...]] = {
    "framing": ("malformed_request",),
    "fields": ("invalid_field",),
    "dtype": ("unsupported_dtype",),
    "count": ("element_count_mismatch",),
    "values": ("value_not_representable",),
    "data type": ("unsupported_dtype",),
    "index type": ("unsupported_dtype",),
    "rank": ("rank_too_small", "rank_mismatch"),
    "batch_dims": ("batch_dims_out_of_range",),
    "axis": ("axis_out_of_range",),
    "batch shape": ("batch_shape_mismatch",),
    "indices shape": ("indices_shape_mismatch",),
    "index depth": ("index_depth_out_of_range",),
    "limits": ("limit_exceeded", "output_too_large"),
    "device": ("device_unavailable",),
    "index values": ("index_out_of_bounds",),
}
_NO_BFLOAT16 = frozenset(TYPES) - {"bfloat16"}
_OPENVINO = frozenset(TYPES) - set(COMPLEX) | set(FLOAT8)
# path and dialect: types of data, types of indices, whether negative indices count from the end
DIALECTS: dict[tuple[str, str], tuple[frozenset[str], frozenset[str], bool]] = {
    ("/gathernd", "onnx-13"): (frozenset(TYPES), frozenset({"int64"}), True),
    ("/gathernd", "onnx-12"): (_NO_BFLOAT16, frozenset({"int64"}), True),
    ("/gathernd", "onnx-11"): (_NO_BFLOAT16, frozenset({"int64"}), True),
    ("/gathernd", "openvino-8"): (_OPENVINO, frozenset(INTEGERS), False),
    ("/gather", "onnx-13"): (frozenset(TYPES), frozenset({"int32", "int64"}), True),
    ("/gather", "onnx-11"): (_NO_BFLOAT16, frozenset({"int32", "int64"}), True),
    ("/gather", "onnx-1"): (_NO_BFLOAT16, frozenset({"int32", "int64"}), False),
    ("/gather", "openvino-8"): (_OPENVINO, frozenset(INTEGERS), True),
    ("/gather_elements", "onnx-13"): (frozenset(TYPES), frozenset({"int32", "int64"}), True),
    ("/gather_elements", "onnx-11"): (_NO_BFLOAT16, frozenset({"int32", "int64"}), True),
    ("/gather_elements", "openvino-6"): (_OPENVINO, frozenset({"int32", "int64"}), False),
}
NEEDS_AXIS = (("/gather", "openvino-8"), ("/gather_elements", "openvino-6"))
"""The dialects whose axis has no default."""
ITEM_BYTES = dict.fromkeys(FLOAT8, 1) | {"bool": 1, "complex64": 8, "complex128": 16, "string": 4, "bfloat16": 2}
ITEM_BYTES |= {name: int(name.strip("uintfloa")) // 8 for name in (*INTEGERS, *FLOATS) if name != "bfloat16"}


@dataclass(frozen=True)
class Limits:
    rank: int = 32
    dimension: int = 2**63 - 1
    elements: int = 2**33
    output_bytes: int = 2**30
    string_bytes: int = 2**24


def broken(path: str, body: dict[str, Any], limits: Limits = Limits()) -> list[Rule]:
    """The rules that `body` breaks, in the order of precedence; its tensors are flat and have a shape.

    Framing is not judged here, since a body that is a dict has none, and of the fields only those that tests here
    break.
    """
    return sorted(set(_broken(path, body, limits)), key=PRECEDENCE.index)


def _broken(path: str, body: dict[str, Any], limits: Limits) -> Iterator[Rule]:
    name = "batch_dims" if path == "/gathernd" else "axis"
    known = {"data", "indices", name, "dialect", "device", "output_encoding"}
    if body.get("out_of_bounds") == "error":  # the other modes are not judged here
        known |= {"out_of_bounds"}
    if is_gather_8(path, body):
        known |= {"batch_dims"}
    if (path, body.get("dialect")) in NEEDS_AXIS and "axis" not in body:
        yield "fields"
    data, indices = body["data"], body["indices"]
    if set(body) - known or any(set(tensor) - {"dtype", "shape", "values"} for tensor in (data, indices)):
        yield "fields"
    if body.get("device", "auto") not in ("auto", "cpu", "gpu"):
        yield "fields"
    if body.get("output_encoding", "values") not in ("values", "base64"):
        yield "fields"
    for tensor in (data, indices):
        if tensor["dtype"] not in (*TYPES, *FLOAT8):
            yield "dtype"
        elif not all(representable(tensor["dtype"], value) for value in tensor["values"] if _leaf(tensor, value)):
            yield "values"
        if len(tensor["values"]) != prod(tensor["shape"]) or not all(_leaf(tensor, v) for v in tensor["values"]):
            yield "count"
    data_types, index_types, wrap = DIALECTS[path, body.get("dialect", "onnx-13")]
    if data["dtype"] in (*TYPES, *FLOAT8) and data["dtype"] not in data_types:
        yield "data type"
    if indices["dtype"] in (*TYPES, *FLOAT8) and indices["dtype"] not in index_types:
        yield "index type"
    if body.get("device") == "gpu":
        yield "device"
    judge = {"/gathernd": _gathernd, "/gather": _gather, "/gather_elements": _gather_elements}[path]
    yield from judge(body, body.get(name, 0), wrap, limits)


def is_gather_8(path: str, body: dict[str, Any]) -> bool:
    """Whether the rules are those of OpenVINO's Gather-8, which has batch_dims and fills what is out of bounds."""
    return path == "/gather" and body.get("dialect") == "openvino-8"


def _leaf(tensor: dict[str, Any], value: Any) -> bool:
    """Whether `value` nests as one item does: a pair for a complex type, no list for any other."""
    return isinstance(value, list) and len(value) == 2 if tensor["dtype"] in COMPLEX else not isinstance(value, list)


def _gathernd(body: dict[str, Any], b: int, wrap: bool, limits: Limits) -> Iterator[Rule]:
    data, indices = body["data"], body["indices"]
    shape, index_shape = data["shape"], indices["shape"]
    r, q = len(shape), len(index_shape)
    if r < 1 or q < 1:
        yield "rank"
    if not 0 <= b < min(q, r) or (body.get("dialect") == "onnx-11" and b != 0):
        yield "batch_dims"
    if any(shape[i] != index_shape[i] for i in range(min(b, q, r))):
        yield "batch shape"
    output = None
    if q:
        k = index_shape[-1]
        if not 1 <= k <= r - b:
            yield "index depth"
        if 0 <= b <= r:
            output = [*index_shape[:-1], *shape[b + k :]]
            axes = [(b + j, shape[b + j]) for j in range(min(k, r - b))]
            if k and any(
                place % k < len(axes) and _outside(value, axes[place % k][1], wrap)
                for place, value in enumerate(indices["values"])
            ):
                yield "index values"
    if _over(data, indices, output, limits):
        yield "limits"


def _gather(body: dict[str, Any], axis: int, wrap: bool, limits: Limits) -> Iterator[Rule]:
    data, indices = body["data"], body["indices"]
    shape, index_shape = data["shape"], indices["shape"]
    r, q = len(shape), len(index_shape)
    output = None
    fills = is_gather_8("/gather", body) and body.get("out_of_bounds") != "error"
    b = body.get("batch_dims", 0) if is_gather_8("/gather", body) else 0
    if r < 1:
        yield "rank"
    if not -min(r, q) <= b <= min(r, q):
        yield "batch_dims"
    b += q if b < 0 else 0
    if any(shape[i] != index_shape[i] for i in range(min(b, q, r))):
        yield "batch shape"
    if not -r <= axis < r:
        yield "axis"
    else:
        axis += r if axis < 0 else 0
        if b > axis:
            yield "batch_dims"
        output = [*shape[:axis], *index_shape[max(b, 0) :], *shape[axis + 1 :]]
        if not fills and any(_outside(value, shape[axis], wrap) for value in indices["values"]):
            yield "index values"
    if _over(data, indices, output, limits):
        yield "limits"


def _gather_elements(body: dict[str, Any], axis: int, wrap: bool, limits: Limits) -> Iterator[Rule]:
    data, indices = body["data"], body["indices"]
    shape, index_shape = data["shape"], indices["shape"]
    r = len(shape)
    if r < 1 or len(index_shape) != r:
        yield "rank"
    if not -r <= axis < r:
        yield "axis"
    else:
        axis += r if axis < 0 else 0
        equal = body.get("dialect") == "openvino-6"
        others = [(index_shape[i], shape[i]) for i in range(r) if i != axis] if len(index_shape) == r else []
        if any(given != size if equal else given > size for given, size in others):
            yield "indices shape"
        if any(_outside(value, shape[axis], wrap) for value in indices["values"]):
            yield "index values"
    if _over(data, indices, index_shape, limits):
        yield "limits"


def _outside(value: Any, size: int, wrap: bool) -> bool:
    return type(value) in (int, float) and not (-size if wrap else 0) <= value < size


def _over(data: dict[str, Any], indices: dict[str, Any], output: list[int] | None, limits: Limits) -> bool:
    size = ITEM_BYTES.get(data["dtype"], 1)
    for shape, item in ((data["shape"], size), (indices["shape"], ITEM_BYTES.get(indices["dtype"], 1)), (output, size)):
        if shape is None:
            continue
        if len(shape) > limits.rank or any(n > limits.dimension for n in shape) or prod(shape) > limits.elements:
            return True
        if prod(n for n in shape if n) * item > 2**63 - 1:
            return True
    if output is not None and prod(output) * size > limits.output_bytes:
        return True
    return any(
        isinstance(text, str) and len(text.encode("utf-8", "replace")) > limits.string_bytes
        for tensor in (data, indices)
        if tensor["dtype"] == "string"
        for text in tensor["values"]
    )


# The least magnitude that rounds to infinity: half an ulp above the largest number.
_INFINITE = {
    "float8_e4m3fn": 464.0000000000001,
    "float8_e5m2": 61440.0,
    "float8_e8m0fnu": 1.5000000000000002 * 2.0**127,
    "float16": 65520.0,
    "bfloat16": 2.0**128 - 2.0**119,
    "float32": 2.0**128 - 2.0**103,
    "float64": float("inf"),
    "complex64": 2.0**128 - 2.0**103,
    "complex128": float("inf"),
}


def representable(dtype: str, value: Any) -> bool:
    """Whether a JSON value, as Python reads it, is one of this type."""
    if dtype == "bool":
        return isinstance(value, bool)
    if dtype == "string":
        return isinstance(value, str) and not any(0xD800 <= ord(sign) < 0xE000 for sign in value)
    if dtype in INTEGERS:
        if type(value) not in (int, float) or not isfinite(value) or value != int(value):
            return False
        bits = int(dtype.strip("uint"))
        low, high = (0, 2**bits) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        return bool(low <= value < high)
    if dtype in COMPLEX:
        return isinstance(value, list) and len(value) == 2 and all(_float(dtype, part) for part in value)
    return _float(dtype, value)


def _float(dtype: str, value: Any) -> bool:
    if value in ("NaN", "Infinity", "-Infinity"):
        return value == "NaN" or dtype not in ("float8_e4m3fn", "float8_e8m0fnu")
    if dtype == "float8_e8m0fnu" and type(value) in (int, float) and value < 0:
        return False
    return type(value) in (int, float) and abs(value) < _INFINITE[dtype]


@dataclass(frozen=True)
class BadIndex:
    """A component of indices that is out of bounds; `item` is its number in row-major order."""

    item: int
    value: int
    axis: int
    size: int
    allowed: list[int] | None


def position(item: int, shape: Sequence[int]) -> list[int]:
    """The coordinates of an item by its number: the one of its kind among all of the shape."""
    return [item // prod(shape[axis + 1 :]) % size for axis, size in enumerate(shape)]


def zero(dtype: str) -> Any:
    """A value of this type."""
    return {"bool": False, "string": "", "complex64": [0, 0], "complex128": [0, 0]}.get(dtype, 0)


def zeros(dtype: str, shape: Sequence[int]) -> list[Any]:
    return [zero(dtype) for _ in range(prod(shape))]
