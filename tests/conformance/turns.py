"""Requests that break two rules which follow one another: the first in the order of precedence is told.

The order: fields, names of types, counts, values, types of data, indices and updates, ranks, batch_dims and axis, batch
shapes, index depth, updates' shape, limits, device, and the values of indices.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from tests.conformance.cases import Case, Error, case
from tests.http.forms import int64, tensor

ND, AXIS, ELEMENTS = "/gathernd", "/gather", "/gather_elements"
SCATTERS = ("/scatternd", "/scatter_elements")
GRADIENTS = ("/gathernd/backward", "/gather/backward")
SCALAR, FEW = tensor("float32", [], [0]), tensor("float32", [2, 3], [0] * 5)
WIDE, DEEP = tensor("float32", [1] * 33, [0]), tensor("float32", [2, 3], [0] * 6)
NO_TYPE, SHORT = tensor("float33", [2, 3], [0] * 5), tensor("bfloat16", [2, 3], [0] * 6)
HALF, NARROW, FAR = int64([2, 1], [0, 0.5]), tensor("uint8", [2, 1], [0, 0]), int64([2, 1], [0, 99])
EIGHT: dict[str, Any] = {"dialect": "openvino-8", "axis": 2, "data": tensor("float32", [2, 4, 5], [0] * 40)}


def first(code: str, path: str, pointer: str | None = None, **given: Any) -> Case:
    """A valid request but for what is `given`, which breaks the rule of `code`, and a later one."""
    body: dict[str, Any] = {"data": DEEP, "indices": int64([2, 1], [0, 1])}
    if path in SCATTERS:
        shape = [2, 3] if path == "/scatternd" else [2, 1]
        body["updates"] = tensor("float32", shape, [0] * (shape[0] * shape[1]))
    if path in GRADIENTS:
        shape = [2, 3] if path == "/gathernd/backward" else [2, 1, 3]
        body = {"indices": body["indices"], "grad_output": tensor("float32", shape, [0] * 6), "data_shape": [2, 3]}
    shown = " ".join(f"{name} {value!s:.60}" for name, value in given.items())
    places = () if pointer is None else ({"pointer": pointer},)
    return case(f"{path} {code} first: {shown}", path, body | given, error=Error(code, places, only_code=True))


def _gathers() -> Iterator[Case]:
    for path, foreign in ((ND, "axis"), (AXIS, "batch_dims"), (ELEMENTS, "batch_dims")):
        yield first("invalid_field", path, f"/{foreign}", **{foreign: 0}, data=FEW)
        yield first("unsupported_dtype", path, "/data/dtype", data=NO_TYPE)
        yield first("element_count_mismatch", path, "/data/values", data=FEW, indices=HALF)
        yield first("value_not_representable", path, "/indices/values/1", data=SHORT, indices=HALF, dialect="onnx-11")
        yield first("unsupported_dtype", path, "/data/dtype", data=SHORT, indices=NARROW, dialect="onnx-11")
        yield first("unsupported_dtype", path, "/indices/dtype", data=SCALAR, indices=NARROW)
    yield first("rank_too_small", ND, "/data/shape", data=SCALAR, batch_dims=9)
    yield first("batch_dims_out_of_range", ND, batch_dims=2, indices=int64([3, 1], [0] * 3))
    yield first("batch_shape_mismatch", ND, batch_dims=1, indices=int64([3, 4], [0] * 12))
    yield first("index_depth_out_of_range", ND, data=WIDE, indices=int64([1, 34], [0] * 34))
    yield first("rank_too_small", AXIS, data=SCALAR, axis=9)
    yield first("axis_out_of_range", AXIS, data=WIDE, axis=40)
    yield first("batch_dims_out_of_range", AXIS, **EIGHT | {"axis": 9}, batch_dims=9)
    yield first("axis_out_of_range", AXIS, **EIGHT | {"axis": 9}, batch_dims=1, indices=int64([3, 3], [0] * 9))
    yield first("batch_dims_out_of_range", AXIS, **EIGHT | {"axis": 0}, batch_dims=1, indices=int64([3, 3], [0] * 9))
    yield first("rank_too_small", ELEMENTS, data=SCALAR, indices=int64([1], [0]))
    yield first("rank_mismatch", ELEMENTS, indices=int64([9], [0] * 9), axis=7)
    yield first("axis_out_of_range", ELEMENTS, indices=int64([9, 9], [0] * 81), axis=7)
    yield first("indices_shape_mismatch", ELEMENTS, data=WIDE, indices=int64([2] * 2 + [1] * 31, [0] * 4))
    for path, shape in ((ND, [1, 1]), (AXIS, [1]), (ELEMENTS, [1] * 33)):
        yield first("limit_exceeded", path, "/data/shape", data=WIDE, indices=int64(shape, [7]), device="gpu")
        yield first("device_unavailable", path, indices=FAR, device="gpu")


def _scatters() -> Iterator[Case]:
    double = tensor("float64", [9], [0] * 9)
    for path in SCATTERS:
        yield first("unsupported_dtype", path, "/indices/dtype", indices=NARROW, updates=double)
        yield first("unsupported_dtype", path, "/updates/dtype", data=SCALAR, updates=double)
        for dtype, value in (("string", "a"), ("complex64", [0, 0]), ("complex128", [0, 0]), ("bool", True)):
            given: dict[str, Any] = {"data": tensor(dtype, [], [value]), "updates": tensor(dtype, [9], [value] * 9)}
            yield first("unsupported_dtype", path, "/reduction", **given, reduction="add")
        yield first("device_unavailable", path, indices=FAR, device="gpu")
    nine = tensor("float32", [9], [0] * 9)
    yield first("rank_too_small", "/scatternd", "/data/shape", data=SCALAR, updates=nine)
    yield first("index_depth_out_of_range", "/scatternd", indices=int64([1, 3], [0] * 3), updates=nine)
    yield first("updates_shape_mismatch", "/scatternd", data=WIDE, updates=nine)
    yield first(
        "limit_exceeded", "/scatternd", "/data/shape", data=WIDE, indices=int64([1, 1], [7]), updates=WIDE, device="gpu"
    )
    yield first("rank_mismatch", "/scatter_elements", indices=int64([9], [0] * 9), axis=7)
    yield first("axis_out_of_range", "/scatter_elements", indices=int64([9, 9], [0] * 81), axis=7)
    yield first("indices_shape_mismatch", "/scatter_elements", indices=int64([9, 9], [0] * 81), updates=nine)


def _gradients() -> Iterator[Case]:
    numbers = tensor("int32", [9], [0] * 9)
    nine = tensor("float32", [9], [0] * 9)
    for path in GRADIENTS:
        nd = path == "/gathernd/backward"
        yield first(
            "unsupported_dtype", path, "/indices/dtype", indices=tensor("float32", [2], [0, 0]), grad_output=numbers
        )
        yield first("unsupported_dtype", path, "/grad_output/dtype", data_shape=[], grad_output=numbers)
        yield first(
            "rank_too_small",
            path,
            "/data_shape",
            data_shape=[],
            grad_output=nine,
            **{"batch_dims" if nd else "axis": 9},
        )
        yield first("updates_shape_mismatch", path, data_shape=[10**9, 10**9], grad_output=nine)
        indices = np.array([[0], [2**30]])
        grad = tensor("float32", [2] if nd else [2, 1], [0, 0])
        given: dict[str, Any] = {"indices": indices, "grad_output": grad, "device": "gpu"}
        yield first("output_too_large", path, "/data_shape", data_shape=[2**30], **given)
        yield first("device_unavailable", path, data_shape=[2], **given)
    yield first("batch_dims_out_of_range", GRADIENTS[0], grad_output=nine, indices=int64([3, 1], [0] * 3), batch_dims=2)
    yield first("batch_shape_mismatch", GRADIENTS[0], grad_output=nine, indices=int64([4, 0], []), batch_dims=1)
    yield first("index_depth_out_of_range", GRADIENTS[0], grad_output=nine, indices=int64([4, 0], []))
    yield first("axis_out_of_range", GRADIENTS[1], grad_output=nine, axis=2)


STAGES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("invalid_field", "/extra", {"extra": 1}),
    ("element_count_mismatch", "/indices/values", {"indices": int64([5], [0])}),
    ("value_not_representable", "/indices/values/0", {"indices": int64([5], [0.5] * 5)}),
    ("tensor_not_found", "/tensor", {"tensor": "pv_nothing"}),
    ("unsupported_dtype", "/pooling", {"tensor": "pv_ids"}),
    ("rank_too_small", "/tensor", {"tensor": "pv_one"}),
    ("updates_shape_mismatch", "/weights/shape", {"weights": tensor("float32", [1], [1])}),
    ("feature_mismatch", "", {"offsets": int64([3], [0, 0, 0])}),
    ("offsets_invalid", "/offsets/values/0", {"offsets": int64([2], [1, 1])}),
    ("index_out_of_bounds", "/indices/values/0", {"indices": int64([5], [99] * 5)}),
)
"""Mistakes in a feature of a lookup, in the order in which they are told: the code, the place and what is wrong."""


def _lookups() -> Iterator[Case]:
    """A feature that is wrong at a later stage and stands first hides none of an earlier stage."""
    bag = {"tensor": "pv_rows", "indices": int64([5], [0, 0, 3, 1, 0]), "offsets": int64([2], [0, 3]), "pooling": "sum"}
    for (code, pointer, early), (_, _, late) in pairwise(STAGES):
        for number, wrong in ((2, (late, early)), (1, (early, early, late))):
            error = Error(code, ({"pointer": f"/features/{number}{pointer}"},), only_code=True)
            features = [bag, *(bag | one for one in wrong)]
            yield case(f"/lookup {code}{pointer} first, in {number}", "/lookup", {"features": features}, error=error)


TURNS = [*_gathers(), *_scatters(), *_gradients(), *_lookups()]
