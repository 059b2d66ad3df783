"""Random gathers with `out_of_bounds` in each mode: their rules, and the loops that say what they give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.http.forms import FLOAT8, INTEGERS, TYPES, octets
from tests.http.rules import DIALECTS, NEEDS_AXIS, representable, zero
from tests.parity.faults import Fault, Stage, first, of_arrays, of_elements_shapes, of_fields, of_index_values, of_type
from tests.parity.items import NUMPY, Array, Rng, choose, indices_around, items, name_of
from tests.parity.messages import Request, values
from tests.parity.scatter_cases import spoil_values

ND, AXIS, ELEMENTS = "/gathernd", "/gather", "/gather_elements"
MODES = ("error", "clip", "wrap", "fill")
CODES = {
    "invalid_field", "unsupported_dtype", "element_count_mismatch", "value_not_representable", "rank_too_small",
    "rank_mismatch", "axis_out_of_range", "batch_dims_out_of_range", "batch_shape_mismatch", "indices_shape_mismatch",
    "index_depth_out_of_range", "device_unavailable", "index_out_of_bounds",
}  # fmt: skip


def is_gather_8(request: Request) -> bool:
    return request.path == AXIS and request.parameters.get("dialect") == "openvino-8"


def mode_of(request: Request) -> str:
    """Gather-8's text fills what is out of bounds; everywhere else it is an error."""
    return str(request.parameters.get("out_of_bounds", "fill" if is_gather_8(request) else "error"))


def wraps(request: Request) -> bool:
    return DIALECTS[request.path, request.parameters.get("dialect", "onnx-13")][2]


def random_gather(rng: Rng, *, spoiled: bool) -> Request:
    """A request that is valid but for what is `spoiled`; indices are out of bounds where the mode takes that."""
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
    if spoiled:
        for _ in range(int(rng.integers(0, 3))):
            _spoil(rng, path, given, shape, index_shape)
    if spoiled and rng.random() < 0.08:
        dtype, index_type = choose(rng, TYPES), choose(rng, (*INTEGERS, "float32"))
    request = Request(path, {"data": items(rng, dtype, shape), "indices": np.zeros(0, np.int64)}, given)
    known = (path, given.get("dialect", "onnx-13")) in DIALECTS
    bad = choose(rng, (0, 0.1, 0.6)) if spoiled or not known or mode_of(request) != "error" else 0
    request.arrays["indices"] = _indices(rng, request, index_type, index_shape, bad, known and wraps(request))
    if known and mode_of(request) == "fill" and (spoiled or rng.random() < 0.7):
        given["fill_value"] = values(items(rng, name_of(request.arrays["data"]), [1]))[0]
        if spoiled and rng.random() < 0.3:
            given["fill_value"] = choose(rng, (2**70, -0.5, "x", True, [1, 2], 300, "NaN", 1e39))
    if spoiled and rng.random() < 0.12:
        spoil_values(rng, request)
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
    if dtype == "float32":
        return np.zeros(index_shape, np.float32)
    wide = np.broadcast_to(np.array(sizes, np.int64), index_shape) if index_shape else np.array(sizes[0])
    return indices_around(rng, dtype, np.array(wide), wraps=wrap, bad=bad)


def _spoil(rng: Rng, path: str, given: dict[str, Any], shape: list[int], index_shape: list[int]) -> None:
    name = "batch_dims" if path == ND or (given.get("dialect") == "openvino-8" and rng.random() < 0.5) else "axis"
    match int(rng.integers(10)):
        case 0:
            given[name] = choose(rng, (-7, -1, 1, 2, 6, 2**63, -(2**64)))
        case 1 if index_shape:
            index_shape[rng.integers(len(index_shape))] = choose(rng, (0, 1, 2, 6))
        case 2:
            shape[rng.integers(len(shape) or 1) :] = choose(rng, ([], [1], [0], [2, 3]))
        case 3:
            del index_shape[: choose(rng, (1, 9))]
        case 4:
            given["dialect"] = choose(
                rng, ("onnx-13", "onnx-12", "onnx-11", "onnx-1", "openvino-8", "openvino-6", "onnx-18")
            )
        case 5:
            given["device"] = choose(rng, ("gpu", "gpu", "tpu", "cpu"))
        case 6:
            given[choose(rng, ("axis", "batch_dims", "reduction"))] = 0
        case 7:
            given["out_of_bounds"] = choose(rng, ("ignore", *MODES))
        case 8:
            given["fill_value"] = 0
        case 9:
            given.pop("axis", None)


def faults_of(request: Request) -> list[Fault]:
    """The rules that a request breaks first, none for a valid one."""
    return first(_faults(request))


def _faults(request: Request) -> Iterator[Fault]:
    path, given = request.path, request.parameters
    dialect = given.get("dialect", "onnx-13")
    known = {"dialect", "device", "out_of_bounds", "fill_value", "batch_dims" if path == ND else "axis"}
    if is_gather_8(request):
        known |= {"batch_dims"}
    if (path, dialect) in NEEDS_AXIS and "axis" not in given:
        yield Fault(Stage.FIELDS, "invalid_field", "parameter", "axis")
    yield from of_fields(request, known, {name for route, name in DIALECTS if route == path})
    mode = mode_of(request)
    if mode not in MODES:
        yield Fault(Stage.FIELDS, "invalid_field", "parameter", "out_of_bounds")
    if "fill_value" in given and mode != "fill":
        yield Fault(Stage.FIELDS, "invalid_field", "parameter", "fill_value")
    yield from of_arrays(request)
    if (path, dialect) not in DIALECTS:
        return
    data_types, index_types, wrap = DIALECTS[path, dialect]
    dtype = request.dtype("data")
    if dtype in (*TYPES, *FLOAT8) and "fill_value" in given and not representable(dtype, given["fill_value"]):
        yield Fault(Stage.VALUES, "value_not_representable", "parameter", "fill_value")
    yield from of_type(request, "data", data_types, Stage.DATA_TYPE)
    yield from of_type(request, "indices", index_types, Stage.INDEX_TYPE)
    shape, index_shape = request.shape("data"), request.shape("indices")
    if not shape:
        yield Fault(Stage.RANK, "rank_too_small", "shape", "data")
    judge = {ND: faults_nd, AXIS: faults_axis, ELEMENTS: _faults_elements}[path]
    for fault in judge(request, shape, index_shape, wrap):
        if fault.stage != Stage.INDEX_VALUES or mode == "error":
            yield fault
            continue
        # Under clip and wrap only an axis without items has no index to put in a bad one's place; fill needs none.
        bad = tuple(each for each in fault.bad if not each.size) if mode != "fill" else ()
        if bad:
            yield Fault(fault.stage, fault.code, fault.what, fault.name, bad[0].item, bad)


def faults_nd(request: Request, shape: list[int], index_shape: list[int], wrap: bool) -> Iterator[Fault]:
    r, q, b = len(shape), len(index_shape), request.parameters.get("batch_dims", 0)
    if shape and not index_shape:
        yield Fault(Stage.RANK, "rank_too_small", "shape", "indices")
    if not 0 <= b < min(q, r) or (request.parameters.get("dialect") == "onnx-11" and b):
        yield Fault(Stage.PARAMETER, "batch_dims_out_of_range", "parameter", "batch_dims")
        return
    if shape[:b] != index_shape[:b]:
        yield Fault(Stage.BATCH_SHAPE, "batch_shape_mismatch", "shape", "indices")
    depth = index_shape[-1]
    if not 1 <= depth <= r - b:
        yield Fault(Stage.DEPTH, "index_depth_out_of_range", "shape", "indices")
        return
    sizes = shape[b : b + depth]
    axes = [(b + j, size) for j, size in enumerate(sizes)]
    yield from of_index_values(request.arrays["indices"], axes, [-size if wrap else 0 for size in sizes])


def faults_axis(request: Request, shape: list[int], index_shape: list[int], wrap: bool) -> Iterator[Fault]:
    r, q, axis = len(shape), len(index_shape), request.parameters.get("axis", 0)
    b = request.parameters.get("batch_dims", 0) if is_gather_8(request) else 0
    if not -min(r, q) <= b <= min(r, q):
        yield Fault(Stage.PARAMETER, "batch_dims_out_of_range", "parameter", "batch_dims")
        b = 0
    if not -r <= axis < r:
        yield Fault(Stage.PARAMETER, "axis_out_of_range", "parameter", "axis")
        return
    axis, b = axis % r, b + q if b < 0 else b
    if b > axis:
        yield Fault(Stage.PARAMETER, "batch_dims_out_of_range", "parameter", "batch_dims")
    if shape[:b] != index_shape[:b]:
        yield Fault(Stage.BATCH_SHAPE, "batch_shape_mismatch", "shape", "indices")
    yield from of_index_values(request.arrays["indices"], [(axis, shape[axis])], [-shape[axis] if wrap else 0])


def _faults_elements(request: Request, shape: list[int], index_shape: list[int], wrap: bool) -> Iterator[Fault]:
    axis = yield from of_elements_shapes(request, shape, index_shape)
    if axis is not None:
        yield from of_index_values(request.arrays["indices"], [(axis, shape[axis])], [-shape[axis] if wrap else 0])


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


def kinds_of(request: Request) -> list[Any]:
    """What a valid request is an example of."""
    return [
        (request.path, request.parameters.get("dialect", "onnx-13"), mode_of(request)),
        (request.path, name_of(request.arrays["data"])),
        ("rank", request.arrays["data"].ndim),
        ("empty", not request.arrays["data"].size),
    ]
