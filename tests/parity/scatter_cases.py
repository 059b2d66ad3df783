"""Random scatters, and the loops that say what they give."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.http.forms import COMPLEX, TYPES
from tests.kernels import scatter_loops
from tests.parity.items import Array, Rng, choose, indices_around, items
from tests.parity.messages import Request, indexes_nothing

ND, ELEMENTS = "/scatternd", "/scatter_elements"
REDUCTIONS = {
    "onnx-18": ("none", "add", "mul", "min", "max"),
    "onnx-16": ("none", "add", "mul"),
    "onnx-13": ("none",),
    "onnx-11": ("none",),
}


def random_scatter(rng: Rng) -> Request:
    """A valid request."""
    while indexes_nothing(request := _drawn(rng)):
        pass
    return request


def _drawn(rng: Rng) -> Request:
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
    index_type = choose(rng, ("int64", "int64", "int32")) if path == ELEMENTS else "int64"
    indices = _indices(rng, path, index_type, shape, index_shape, parameters.get("axis", 0))
    arrays = {
        "data": items(rng, dtype, shape),
        "indices": indices,
        "updates": items(rng, dtype, updates_shape),
    }
    return Request(path, arrays, parameters)


def _indices(rng: Rng, path: str, dtype: str, shape: list[int], index_shape: list[int], axis: int) -> Array:
    sizes = shape[: index_shape[-1]] if path == ND else [shape[axis]]
    wide = np.broadcast_to(np.array(sizes, np.int64), index_shape) if index_shape else np.array(sizes[0])
    return indices_around(rng, dtype, np.array(wide), wraps=True, bad=0)


def looped(request: Request) -> Array:
    """The output of a valid request, one item at a time."""
    data, indices, updates = (request.arrays[name] for name in ("data", "indices", "updates"))
    reduction = request.parameters.get("reduction", "none")
    if request.path == ND:
        return scatter_loops.scatter_nd(data, indices, updates, reduction)
    axis = request.parameters.get("axis", 0) % data.ndim
    return scatter_loops.scatter_elements(data, indices, updates, axis, reduction)
