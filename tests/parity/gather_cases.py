"""Random gathers with `out_of_bounds` in each mode, and the loops that say what they give."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.http.forms import FLOAT8, octets
from tests.http.rules import DIALECTS, NEEDS_AXIS, zero
from tests.parity.items import NUMPY, Array, Rng, choose, indices_around, items, name_of
from tests.parity.messages import Request, indexes_nothing, values

ND, AXIS, ELEMENTS = "/gathernd", "/gather", "/gather_elements"
MODES = ("error", "clip", "wrap", "fill")


def is_gather_8(request: Request) -> bool:
    return request.path == AXIS and request.parameters.get("dialect") == "openvino-8"


def mode_of(request: Request) -> str:
    """Gather-8's text fills what is out of bounds; everywhere else it is an error."""
    return str(request.parameters.get("out_of_bounds", "fill" if is_gather_8(request) else "error"))


def wraps(request: Request) -> bool:
    return DIALECTS[request.path, request.parameters.get("dialect", "onnx-13")][2]


def random_gather(rng: Rng) -> Request:
    """A valid request; indices are out of bounds if the mode takes that."""
    while True:
        request = _drawn(rng)
        if mode_of(request) == "fill" or not indexes_nothing(request):
            return request


def _drawn(rng: Rng) -> Request:
    path, dialect = choose(rng, sorted(DIALECTS))
    data_types, index_types, _ = DIALECTS[path, dialect]
    dtype, index_type = choose(rng, sorted(data_types)), choose(rng, sorted(index_types))
    empty = rng.random() < 0.06
    rank = choose(rng, (1, 2, 3, 4, 2, 3, 4, 5, 6))
    shape = [int(size) for size in rng.integers(0 if empty else 1, 5 if rank < 5 else 4, rank)]
    given: dict[str, Any] = {"dialect": dialect} if dialect != "onnx-13" or rng.random() < 0.3 else {}
    mode = choose(rng, MODES)
    if (dialect != "openvino-8" or path != AXIS or mode != "fill" or rng.random() < 0.5) and (
        mode != "error" or rng.random() < 0.5 or dialect == "openvino-8"
    ):
        given["out_of_bounds"] = mode
    index_shape = _shapes(rng, path, dialect, given, shape)
    request = Request(path, {"data": items(rng, dtype, shape), "indices": np.zeros(0, np.int64)}, given)
    bad = choose(rng, (0, 0.1, 0.6)) if mode_of(request) != "error" else 0
    request.arrays["indices"] = _indices(rng, request, index_type, index_shape, bad, wraps(request))
    if mode_of(request) == "fill" and rng.random() < 0.7:
        given["fill_value"] = values(items(rng, name_of(request.arrays["data"]), [1]))[0]
    return request


def _shapes(rng: Rng, path: str, dialect: str, given: dict[str, Any], shape: list[int]) -> list[int]:
    """The shape of indices, for the parameters that it chooses."""
    rank = len(shape)
    few = [int(size) for size in rng.integers(0 if rng.random() < 0.1 else 1, 4, rng.integers(0, 3))]
    if path == ND:
        b = int(rng.integers(0, rank)) if dialect != "onnx-11" else 0
        if b or rng.random() < 0.5:
            given["batch_dims"] = b
        return [*shape[:b], *few, int(rng.integers(1, rank - b + 1))]
    axis = int(rng.integers(-rank, rank))
    if axis or (path, dialect) in NEEDS_AXIS or rng.random() < 0.5:
        given["axis"] = axis
    if path == ELEMENTS:
        equal = dialect == "openvino-6"
        found = [size if equal else int(rng.integers(min(size, 1), size + 1)) for size in shape]
        found[axis] = int(rng.integers(0, 6)) if rng.random() < 0.9 else 0
        return found
    if dialect != "openvino-8":
        return few
    b = int(rng.integers(0, axis % rank + 1))
    found = [*shape[:b], *few]
    back = b - len(found)
    if b or rng.random() < 0.5:
        given["batch_dims"] = back if back < 0 and rng.random() < 0.5 and -back <= rank else b
    return found


def _indices(rng: Rng, request: Request, dtype: str, index_shape: list[int], bad: float, wrap: bool) -> Array:
    shape, given = request.shape("data"), request.parameters
    start, count = given.get("axis", 0), 1
    if request.path == ND and index_shape:
        start, count = given.get("batch_dims", 0), index_shape[-1]
    sizes = [shape[start + j] if -len(shape) <= start + j < len(shape) else 1 for j in range(count)]
    wide = np.broadcast_to(np.array(sizes, np.int64), index_shape) if index_shape else np.array(sizes[0])
    return indices_around(rng, dtype, np.array(wide), wraps=wrap, bad=bad)


def looped(request: Request) -> tuple[Array, int]:
    """The output of a valid request, one element at a time, and how many components are replaced."""
    data, indices, given = request.arrays["data"], request.arrays["indices"], request.parameters
    mode, wrap = mode_of(request), wraps(request)
    filled = fill_item(name_of(data), given.get("fill_value"))

    def judged(value: Any, size: int) -> int | None:
        """The index that stands in a component's place, None for one whose slice is filled."""
        index = int(value)
        if wrap and -size <= index < 0:
            return index + size
        if 0 <= index < size:
            return index
        return {"clip": max(0, min(index, size - 1)), "wrap": index % (size or 1)}.get(mode)

    if request.path == ND:
        b, q = given.get("batch_dims", 0), indices.ndim
        depth, axes = indices.shape[-1], range(b, b + indices.shape[-1])
        output = np.empty(indices.shape[:-1] + data.shape[b + depth :], data.dtype)
        for place in np.ndindex(output.shape):
            row, rest = place[: q - 1], place[q - 1 :]
            chosen = [judged(indices[(*row, j)], data.shape[b + j]) for j in range(depth)]
            output[place] = filled if None in chosen else data[(*row[:b], *chosen, *rest)]
    else:
        axis = given.get("axis", 0) % data.ndim
        axes = range(axis, axis + 1)
        b = given.get("batch_dims", 0) % (indices.ndim + (given.get("batch_dims", 0) >= 0))
        q = indices.ndim - b
        elements = request.path == ELEMENTS
        shape = indices.shape if elements else data.shape[:axis] + indices.shape[b:] + data.shape[axis + 1 :]
        output = np.empty(shape, data.dtype)
        for place in np.ndindex(shape):
            named = place if elements else (*place[:b], *place[axis : axis + q])
            index = judged(indices[named], data.shape[axis])
            after = place[axis + 1 :] if elements else place[axis + q :]
            output[place] = filled if index is None else data[(*place[:axis], index, *after)]
    replaced = 0
    for item, value in enumerate(indices.reshape(-1).tolist()):
        size = data.shape[axes[item % len(axes)]]
        replaced += not (-size if wrap else 0) <= value < size
    return output, replaced


def fill_item(dtype: str, given: Any) -> Any:
    """The item that a fill value is, 0 or what is like it where none is given."""
    value = zero(dtype) if given is None else given
    if dtype == "string":
        return value
    if isinstance(value, list):
        value = complex(*map(float, value))
    if isinstance(value, str) or (isinstance(value, int) and "float" in dtype):  # beyond 64 bits, too
        value = float(value)
    if dtype in FLOAT8:
        return np.frombuffer(octets(dtype, [value]), NUMPY[dtype])[0]
    with np.errstate(all="ignore"):
        return np.array([value]).astype(NUMPY[dtype])[0]
