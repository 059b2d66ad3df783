"""Parameters that an operator does not have or take, and indices of which many are out of bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tests.conformance.block_quantized import PATH as QUANTIZED
from tests.conformance.block_quantized import table
from tests.conformance.cases import Case, Error, at, case, refused
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
FAR = (2**63, -(2**63), 2**64, -(10**40))


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


def _far() -> Iterator[Case]:
    """Axes and indices whose arithmetic would overflow."""
    for path in ("/gather_elements", "/scatter_elements", "/gather"):
        default = "onnx-18" if path in SCATTERS else "onnx-13"
        for axis in FAR:
            shown = axis if -(2**63) <= axis < 2**64 else str(axis)
            place = at("/axis", value=shown, allowed=[-2, 1])
            yield refused("axis_out_of_range", body(path) | {"axis": axis}, place, path, (default, None))
    for path in (*GATHERS, *SCATTERS):
        nd = path.endswith("nd")
        clause = "5" if path == "/gathernd" else None
        default = "onnx-18" if path in SCATTERS else "onnx-13"
        for entry in (2**62, -(2**62), 2**63 - 1, -(2**63), 3, -4):
            given = body(path)
            indices = np.array(given["indices"])
            indices.reshape(-1)[-1] = entry
            position = [int(at) for at in np.unravel_index(indices.size - 1, indices.shape)]
            place = at(
                f"/indices/values/{indices.size - 1}", position=position, value=entry, axis=0, size=3, allowed=[-3, 2]
            )
            yield refused("index_out_of_bounds", given | {"indices": indices}, place, path, (default, clause))
        if path in SCATTERS:
            continue
        # More are out of bounds than are told one by one.
        many = np.array([0, 4, 9, -5] * 6)
        shape = (24, 1) if nd else (24,) if path == "/gather" else (12, 2)
        bad = [item for item in range(24) if item % 4]
        places = [
            one
            for item in bad[:10]
            for one in at(f"/indices/values/{item}", position=[int(x) for x in np.unravel_index(item, shape)],
                          value=int(many[item]), axis=0, size=3, allowed=[-3, 2])
        ]  # fmt: skip
        given = body(path) | {"indices": many.reshape(shape)}
        yield refused("index_out_of_bounds", given, places, path, (default, clause), len(bad))
    empty = {"data": np.zeros((2, 0), np.int8), "indices": np.zeros((2, 1), np.int64), "axis": 1}
    places = [
        one
        for item in (0, 1)
        for one in at(f"/indices/values/{item}", position=[item, 0], value=0, axis=1, size=0, allowed=None)
    ]
    yield refused("index_out_of_bounds", empty, places, "/gather_elements", ("onnx-13", None), 2)


def _scatters() -> Iterator[Case]:
    """Updates that are not as the data is, and indices into what is empty."""
    updates = tensor("float32", [2, 2], [7, 8, 9, 1e39])
    place = at("/updates/values/3", position=[1, 1], value=1e39)
    yield refused("value_not_representable", body("/scatternd") | {"updates": updates}, place, "/scatternd")
    few = tensor("float32", [2, 2], [7, 8, 9])
    yield refused("element_count_mismatch", body("/scatternd") | {"updates": few}, at("/updates/values"), "/scatternd")
    texts = {"data": tensor("string", [2], ["a", "b"]), "updates": tensor("string", [1], ["c"]), "reduction": "add"}
    for path, indices in (("/scatternd", np.array([[0]])), ("/scatter_elements", np.array([0]))):
        yield refused("unsupported_dtype", texts | {"indices": indices}, at("/reduction"), path)
    rule = ("onnx-18", None)
    for shape, index in (((0, 3), 0), ((2, 0), 2)):
        rows = shape[0]
        allowed = [-rows, rows - 1] if rows else None
        place = at("/indices/values/0", position=[0, 0], value=index, axis=0, size=rows, allowed=allowed)
        given = {"data": np.zeros(shape, np.int8), "indices": np.array([[index]])}
        given |= {"updates": np.zeros((1, shape[1]), np.int8)}
        yield refused("index_out_of_bounds", given, place, "/scatternd", rule)
    inner = body("/scatternd") | {"indices": np.array([[0, 3]]), "updates": np.ones(1, np.float32)}
    place = at("/indices/values/1", position=[0, 1], value=3, axis=1, size=2, allowed=[-2, 1])
    yield refused("index_out_of_bounds", inner, place, "/scatternd", rule)
    for path in SCATTERS:
        wrong = body(path) | {"updates": np.ones((1, 2), np.float32)}
        yield refused("updates_shape_mismatch", wrong, at("/updates/shape"), path, rule)


def _elements() -> Iterator[Case]:
    path = "/gather_elements"
    yield refused("device_unavailable", body(path) | {"device": "gpu"}, at("/device"), path)


def _in_turn(path: str, given: dict[str, Any], steps: tuple[tuple[dict[str, Any], str, str], ...]) -> Iterator[Case]:
    """Bodies that are wrong in all that comes later too: each step mends what was told, and is told the next."""
    for number, (change, code, pointer) in enumerate(steps):
        given = given | change
        error = Error(code, ({"pointer": pointer},), only_code=True)
        yield case(f"{path} wrong in many ways, {number} mended", path, given, error=error)


def _orders() -> Iterator[Case]:
    half = tensor("float16", [3, 2], [1] * 6)
    scatter = {
        "data": half, "indices": tensor("int32", [1, 1], [9]), "updates": tensor("float32", [3], [1, 2, 3]),
        "dialect": "onnx-11", "device": "gpu",
    }  # fmt: skip
    yield from _in_turn(
        "/scatternd",
        scatter,
        (
            ({}, "unsupported_dtype", "/indices/dtype"),
            ({"indices": int64([1, 0], [])}, "unsupported_dtype", "/updates/dtype"),
            ({"updates": tensor("float16", [3], [1, 2, 3])}, "index_depth_out_of_range", "/indices/shape"),
            ({"indices": int64([1, 1], [9])}, "updates_shape_mismatch", "/updates/shape"),
            ({"updates": tensor("float16", [1, 2], [1, 2])}, "device_unavailable", "/device"),
            ({"device": "cpu"}, "index_out_of_bounds", "/indices/values/0"),
        ),
    )
    bfloat16 = scatter | {"data": tensor("bfloat16", [3, 2], [1] * 6)}
    error = Error("unsupported_dtype", ({"pointer": "/data/dtype"},), only_code=True)
    yield case("/scatternd wrong in many ways, the data first", "/scatternd", bfloat16, error=error)
    gradient = {
        "indices": tensor("float64", [3, 3], [9] * 9), "grad_output": tensor("int8", [3, 2], [1] * 6),
        "data_shape": [2**62, 2**62], "batch_dims": 7, "device": "gpu",
    }  # fmt: skip
    yield from _in_turn(
        "/gathernd/backward",
        gradient,
        (
            ({}, "unsupported_dtype", "/indices/dtype"),
            ({"indices": int64([3, 3], [9] * 9)}, "unsupported_dtype", "/grad_output/dtype"),
            ({"grad_output": tensor("float32", [3, 2], [1] * 6)}, "batch_dims_out_of_range", "/batch_dims"),
            ({"batch_dims": 0}, "index_depth_out_of_range", "/indices/shape"),
            ({"indices": int64([3, 1], [-9] * 3)}, "updates_shape_mismatch", "/grad_output/shape"),
            ({"data_shape": [2**40, 2]}, "limit_exceeded", "/data_shape"),
            ({"data_shape": [4, 2]}, "device_unavailable", "/device"),
            ({"device": "cpu"}, "index_out_of_bounds", "/indices/values/0"),
        ),
    )


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


REFUSED_FIELDS = [*_fields(), *_far(), *_of_every_operator(), *_scatters(), *_elements(), *_orders()]
