"""Random scatters, valid and not: their rules stated once more, and the loops that say what they give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.http.forms import COMPLEX, INTEGERS, TYPES
from tests.kernels import scatter_loops
from tests.parity.faults import (
    INT32_64,
    NO_BFLOAT16,
    Fault,
    Stage,
    first,
    of_arrays,
    of_elements_shapes,
    of_fields,
    of_index_values,
    of_type,
)
from tests.parity.items import Array, Rng, choose, indices_around, items, name_of
from tests.parity.messages import Request, values

ND, ELEMENTS = "/scatternd", "/scatter_elements"
REDUCTIONS = {
    "onnx-18": ("none", "add", "mul", "min", "max"),
    "onnx-16": ("none", "add", "mul"),
    "onnx-13": ("none",),
    "onnx-11": ("none",),
}
CODES = {
    "invalid_field", "unsupported_dtype", "element_count_mismatch", "value_not_representable", "rank_too_small",
    "rank_mismatch", "axis_out_of_range", "indices_shape_mismatch", "index_depth_out_of_range",
    "updates_shape_mismatch", "device_unavailable", "index_out_of_bounds",
}  # fmt: skip


def random_scatter(rng: Rng, *, spoiled: bool) -> Request:
    """A valid request, but for what is `spoiled` in some of them."""
    path, dialect = choose(rng, (ND, ELEMENTS)), choose(rng, ("onnx-18", *REDUCTIONS))
    reduction = choose(rng, REDUCTIONS[dialect])
    types = [name for name in TYPES if dialect != "onnx-11" or name != "bfloat16"]
    if reduction != "none":
        types = [name for name in types if name not in ("bool", "string", *COMPLEX)]
    dtype = choose(rng, types)
    empty = rng.random() < 0.06
    shape = [int(size) for size in rng.integers(0 if empty else 1, 5, rng.integers(1, 5))]
    parameters: dict[str, Any] = {"dialect": dialect} if dialect != "onnx-18" or rng.random() < 0.3 else {}
    if reduction != "none" or rng.random() < 0.3:
        parameters["reduction"] = reduction
    if path == ND:
        depth = int(rng.integers(1, len(shape) + 1))
        lead = [int(size) for size in rng.integers(0 if rng.random() < 0.1 else 1, 4, rng.integers(0, 3))]
        index_shape, updates_shape = [*lead, depth], [*lead, *shape[depth:]]
    else:
        axis = int(rng.integers(-len(shape), len(shape)))
        if axis or rng.random() < 0.5:
            parameters["axis"] = axis
        index_shape = [int(rng.integers(min(size, 1), size + 1)) for size in shape]
        index_shape[axis] = int(rng.integers(0, 6)) if rng.random() < 0.9 else 0
        updates_shape = index_shape[:]
    if spoiled:
        for _ in range(int(rng.integers(0, 3))):
            _spoil_shape(rng, path, parameters, shape, index_shape, updates_shape)
    index_type = choose(rng, ("int64", "int64", "int32")) if path == ELEMENTS else "int64"
    index_type = choose(rng, (*INTEGERS, "float32")) if spoiled and rng.random() < 0.06 else index_type
    bad = choose(rng, (0, 0, 0.1, 0.6)) if spoiled else 0
    indices = _indices(rng, path, index_type, shape, index_shape, parameters.get("axis", 0), bad)
    updates_type = choose(rng, TYPES) if spoiled and rng.random() < 0.06 else dtype
    if spoiled and rng.random() < 0.06:
        dtype = updates_type = choose(rng, TYPES)
    arrays = {
        "data": items(rng, dtype, shape),
        "indices": indices,
        "updates": items(rng, updates_type, updates_shape),
    }
    request = Request(path, arrays, parameters)
    if spoiled and rng.random() < 0.15:
        spoil_values(rng, request)
    return request


def _indices(rng: Rng, path: str, dtype: str, shape: list[int], index_shape: list[int], axis: int, bad: float) -> Array:
    if path == ND and index_shape:
        sizes = [shape[at] if at < len(shape) else 1 for at in range(index_shape[-1])]
    else:
        sizes = [shape[axis] if -len(shape) <= axis < len(shape) else 1]
    wide = np.broadcast_to(np.array(sizes, np.int64), index_shape) if index_shape else np.array(sizes[0])
    if dtype == "float32":
        return np.zeros(index_shape, np.float32)
    return indices_around(rng, dtype, np.array(wide), wraps=True, bad=bad)


def _spoil_shape(
    rng: Rng,
    path: str,
    parameters: dict[str, Any],
    shape: list[int],
    index_shape: list[int],
    updates_shape: list[int],
) -> None:
    match int(rng.integers(12)):
        case 0 if path == ELEMENTS:
            parameters["axis"] = choose(rng, (-7, 4, 7, 2**63, -(2**64)))
        case 1 if index_shape:
            index_shape[rng.integers(len(index_shape))] = choose(rng, (0, 1, 2, 6))
        case 2:
            shape[rng.integers(len(shape) or 1) :] = choose(rng, ([], [1], [0], [2, 3]))
        case 3:
            del index_shape[: choose(rng, (1, 9))]
        case 4 if updates_shape:
            updates_shape[rng.integers(len(updates_shape))] = choose(rng, (0, 1, 2, 5))
        case 5:
            updates_shape.insert(0, 1)
        case 6:
            parameters["reduction"] = choose(rng, ("sub", "add", "min", "max"))
        case 7:
            parameters["dialect"] = choose(rng, ("onnx-12", "openvino-8", *REDUCTIONS))
        case 8:
            parameters["device"] = choose(rng, ("gpu", "gpu", "tpu", "cpu"))
        case 9:
            parameters[choose(rng, ("axis", "batch_dims"))] = 0
        case 10:
            parameters["out_of_bounds"] = choose(rng, ("error", "clip", "fill"))


def spoil_values(rng: Rng, request: Request) -> None:
    """A type that is none, a value too many or too few, or one that the type cannot hold: what flat JSON can say."""
    name = choose(rng, list(request.arrays))
    if rng.random() < 0.25:
        request.dtypes[name] = choose(rng, ("float8", "int", "Float32", ""))
        return
    listed = request.values[name] = values(request.arrays[name])
    match int(rng.integers(3)):
        case 0:
            listed.append(listed[-1] if listed else 0)
        case 1 if listed:
            del listed[-1]
        case 2 if listed:
            listed[rng.integers(len(listed))] = choose(rng, (None, 2**70, -0.5, "x", True, "NaN", 3, 1e39, "\ud800"))
    if not any(of_arrays(request)):  # the type holds this value, too
        del request.values[name]


def faults_of(request: Request) -> list[Fault]:
    """The rules that a request breaks first, none for a valid one."""
    return first(_faults(request))


def _faults(request: Request) -> Iterator[Fault]:
    given = request.parameters
    dialect = given.get("dialect", "onnx-18")
    known = {"dialect", "device", "reduction"} | ({"axis"} if request.path == ELEMENTS else set())
    yield from of_fields(request, known, REDUCTIONS)
    reduction = given.get("reduction", "none")
    if reduction not in REDUCTIONS.get(dialect, REDUCTIONS["onnx-18"]):
        yield Fault(Stage.FIELDS, "invalid_field", "parameter", "reduction")
    yield from of_arrays(request)
    yield from of_type(request, "data", NO_BFLOAT16 if dialect == "onnx-11" else frozenset(TYPES), Stage.DATA_TYPE)
    yield from of_type(request, "indices", frozenset({"int64"}) if request.path == ND else INT32_64, Stage.INDEX_TYPE)
    if request.dtype("updates") != request.dtype("data"):
        yield Fault(Stage.UPDATES_TYPE, "unsupported_dtype", "dtype", "updates")
    if reduction != "none" and request.dtype("data") in ("bool", "string", *COMPLEX):
        yield Fault(Stage.UPDATES_TYPE, "unsupported_dtype", "parameter", "reduction")
    shape, index_shape, updates_shape = (request.shape(name) for name in ("data", "indices", "updates"))
    if not shape:
        yield Fault(Stage.RANK, "rank_too_small", "shape", "data")
    if request.path == ND:
        yield from _faults_nd(request, shape, index_shape, updates_shape)
    else:
        yield from _faults_elements(request, shape, index_shape, updates_shape)


def _faults_nd(request: Request, shape: list[int], index_shape: list[int], updates_shape: list[int]) -> Iterator[Fault]:
    if not index_shape:
        if shape:  # data's rank is looked at first
            yield Fault(Stage.RANK, "rank_too_small", "shape", "indices")
        return
    depth = index_shape[-1]
    if not 1 <= depth <= len(shape):
        yield Fault(Stage.DEPTH, "index_depth_out_of_range", "shape", "indices")
        return
    if updates_shape != [*index_shape[:-1], *shape[depth:]]:
        yield Fault(Stage.UPDATES_SHAPE, "updates_shape_mismatch", "shape", "updates")
    sizes = shape[:depth]
    yield from of_index_values(request.arrays["indices"], list(enumerate(sizes)), [-size for size in sizes])


def _faults_elements(
    request: Request, shape: list[int], index_shape: list[int], updates_shape: list[int]
) -> Iterator[Fault]:
    axis = yield from of_elements_shapes(request, shape, index_shape)
    if axis is None:
        return
    if updates_shape != index_shape:
        yield Fault(Stage.UPDATES_SHAPE, "updates_shape_mismatch", "shape", "updates")
    yield from of_index_values(request.arrays["indices"], [(axis, shape[axis])], [-shape[axis]])


def looped(request: Request) -> Array:
    """The output of a valid request, one item at a time."""
    data, indices, updates = (request.arrays[name] for name in ("data", "indices", "updates"))
    reduction = request.parameters.get("reduction", "none")
    if request.path == ND:
        return scatter_loops.scatter_nd(data, indices, updates, reduction)
    axis = request.parameters.get("axis", 0) % data.ndim
    return scatter_loops.scatter_elements(data, indices, updates, axis, reduction)


def kinds_of(request: Request) -> list[Any]:
    """What a valid request is an example of."""
    path, given = request.path, request.parameters
    dialect, reduction = given.get("dialect", "onnx-18"), given.get("reduction", "none")
    return [(path, name_of(request.arrays["data"])), (path, dialect, reduction)]
