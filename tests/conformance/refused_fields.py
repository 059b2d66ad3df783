"""Parameters that an operator does not have or take, and arrays whose items are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tests.conformance.block_quantized import PATH as QUANTIZED
from tests.conformance.block_quantized import table
from tests.conformance.cases import Case, at, refused
from tests.http.forms import int64, tensor

GATHERS = ("/gathernd", "/gather", "/gather_elements")
SCATTERS = ("/scatternd", "/scatter_elements")
GRADIENTS = ("/gathernd/backward", "/gather/backward")
FOREIGN: dict[str, tuple[str, ...]] = {
    "/gathernd": ("axis", "reduction", "lda_coeff", "sparse"),
    "/gather": ("batch_dims", "reduction"),
    "/gather_elements": ("batch_dims", "reduction"),
    "/scatternd": ("axis", "batch_dims", "out_of_bounds", "fill_value"),
    "/scatter_elements": ("batch_dims", "out_of_bounds", "fill_value"),
    "/gathernd/backward": ("axis", "out_of_bounds", "fill_value", "reduction"),
    "/gather/backward": ("batch_dims", "out_of_bounds", "reduction"),
}
"""Parameters of other operators. Those that no model of the inference protocol has are left to the native routes."""
NATIVE_ONLY = ("lda_coeff", "sparse")
VALUES: dict[str, Any] = {"out_of_bounds": "clip", "reduction": "none"}
DIALECTS: dict[str, tuple[str, ...]] = {
    "/gathernd": ("onnx-1", "onnx-14", "ONNX-13", "openvino-5", ""),
    "/gather": ("onnx-12", "onnx-7"),
    "/gather_elements": ("onnx-12", "onnx-1", "openvino-8"),
    "/scatternd": ("onnx-12", "openvino-8"),
    "/scatter_elements": ("onnx-12", "openvino-8"),
    "/gathernd/backward": ("onnx-1",),
    "/gather/backward": ("onnx-12",),
}


def body(path: str) -> dict[str, Any]:
    """A valid request of the operator at `path`."""
    if path == QUANTIZED:
        return table("float32", 3, 16) | {"indices": np.array([2, 0])}
    if path in GRADIENTS:
        indices = np.array([[2], [0]] if path == "/gathernd/backward" else [2, 0])
        return {"indices": indices, "grad_output": np.ones((2, 2), np.float32), "data_shape": [3, 2]}
    data = np.arange(6, dtype=np.float32).reshape(3, 2)
    if path.endswith("elements"):
        indices = np.array([[0, 2], [1, 0]])
    else:
        indices = np.array([2, 0]) if path == "/gather" else np.array([[2], [0]])
    given: dict[str, Any] = {"data": data, "indices": indices}
    return given | ({"updates": np.ones((2, 2), np.float32)} if path in SCATTERS else {})


def _fields() -> Iterator[Case]:
    for path in GATHERS:
        more = {"out_of_bounds": "fill", "fill_value": {"a": 1}, "output_dtype": "int8"}
        yield refused("invalid_field", body(path) | more, at("/output_dtype"), path)
    for path, names in FOREIGN.items():
        for name in names:
            if name not in NATIVE_ONLY:
                yield refused("invalid_field", body(path) | {name: VALUES.get(name, 0)}, at(f"/{name}"), path)
        for dialect in DIALECTS[path]:
            yield refused("invalid_field", body(path) | {"dialect": dialect}, at("/dialect"), path)
        yield refused("invalid_field", body(path) | {"device": "tpu"}, at("/device"), path)
    for path in GATHERS:
        yield refused("invalid_field", body(path) | {"out_of_bounds": "ignore"}, at("/out_of_bounds"), path)
        for mode in ("error", "clip", "wrap"):
            yield refused(
                "invalid_field", body(path) | {"out_of_bounds": mode, "fill_value": 0}, at("/fill_value"), path
            )
        filled = body(path) | {"out_of_bounds": "fill"}
        yield refused("value_not_representable", filled | {"fill_value": "x"}, at("/fill_value", value="x"), path)
        yield refused("value_not_representable", filled | {"fill_value": 1e39}, at("/fill_value", value=1e39), path)
        for wrong in ("int32", "float8_e5m2", "complex64", "half", ""):
            yield refused("invalid_field", body(path) | {"output_dtype": wrong}, at("/output_dtype"), path)
        integers = body(path) | {"data": np.arange(6).reshape(3, 2), "output_dtype": "float32"}
        yield refused("unsupported_dtype", integers, at("/output_dtype"), path)
    for path in (*SCATTERS, *GRADIENTS):
        yield refused("invalid_field", body(path) | {"output_dtype": "float32"}, at("/output_dtype"), path)
    for path in SCATTERS:
        yield refused("invalid_field", body(path) | {"reduction": "sub"}, at("/reduction"), path)


def _scatters() -> Iterator[Case]:
    """Updates that the type of data does not hold, or that are too few."""
    updates = tensor("float32", [2, 2], [7, 8, 9, 1e39])
    place = at("/updates/values/3", position=[1, 1], value=1e39)
    yield refused("value_not_representable", body("/scatternd") | {"updates": updates}, place, "/scatternd")
    few = tensor("float32", [2, 2], [7, 8, 9])
    yield refused("element_count_mismatch", body("/scatternd") | {"updates": few}, at("/updates/values"), "/scatternd")


def _of_every_operator() -> Iterator[Case]:
    """Indices that are too few or no integers, tensors that are not there, and ranks beyond the limit."""
    of_data = (*GATHERS, QUANTIZED, *SCATTERS)
    for path in (*of_data, *GRADIENTS):
        given = body(path)
        shape, listed = given["indices"].shape, given["indices"].reshape(-1).tolist()
        few = given | {"indices": int64(shape, listed[1:])}
        yield refused("element_count_mismatch", few, at("/indices/values"), path)
    facts = {"limit": "rank", "maximum": 32}
    for path in of_data:
        given = body(path)
        shape, listed = given["indices"].shape, given["indices"].reshape(-1).tolist()
        half = given | {"indices": int64(shape, [0.5, *listed[1:]])}
        place = at("/indices/values/0", position=[0] * len(shape), value=0.5)
        yield refused("value_not_representable", half, place, path)
        if path == QUANTIZED:
            wide = table("float32", *[1] * 32, 16) | {"indices": np.array([0])}
        else:
            ranked = [name for name in given if name != "indices" or path.endswith("elements")]
            wide = given | {name: given[name].reshape(*given[name].shape, *[1] * 31) for name in ranked}
        yield refused("limit_exceeded", wide, at("/data/shape"), path, facts=facts)
        del given["data"]
        yield replace(refused("tensor_not_found", given, at("/data/tensor"), path), resident="pv_nothing")
    for path in GRADIENTS:
        given = body(path) | {"tensor": "pv_nothing"}
        del given["data_shape"]
        yield refused("tensor_not_found", given, at("/tensor"), path)


REFUSED_FIELDS = [*_fields(), *_of_every_operator(), *_scatters()]
