"""Random gradients of gathers, valid and not: their rules, and loops that add one element after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from tests.http.forms import FLOATS, INTEGERS, TYPES
from tests.http.rules import DIALECTS
from tests.parity import gather_cases
from tests.parity.faults import Fault, Stage, first, of_arrays, of_fields, of_type
from tests.parity.items import NUMPY, Array, Rng, choose, indices_around, items, name_of
from tests.parity.messages import Request
from tests.parity.scatter_cases import spoil_values

ND, AXIS = "/gathernd/backward", "/gather/backward"
ROUTES = sorted((f"{path}/backward", dialect) for path, dialect in DIALECTS if path != gather_cases.ELEMENTS)
COEFFICIENTS = (1, 1.0, -0.5, 0, -0.0, 1e-3, 3, -1e30, 1e-45, 2.5e38)
MOST_ELEMENTS, MOST_BYTES = 2**33, 2**30
CODES = {
    "invalid_field", "unsupported_dtype", "element_count_mismatch", "value_not_representable", "rank_too_small",
    "axis_out_of_range", "batch_dims_out_of_range", "batch_shape_mismatch", "index_depth_out_of_range",
    "updates_shape_mismatch", "limit_exceeded", "output_too_large", "device_unavailable", "index_out_of_bounds",
}  # fmt: skip
Tables = Mapping[str, tuple[str, list[int]]]
"""The resident tensors that there are: type and shape by name."""


def tables() -> dict[str, Array]:
    """Tensors whose shapes requests name: two of each float type, and one of integers."""
    rng = np.random.default_rng(5)
    made = {f"pg_{dtype}_{rank}": items(rng, dtype, [4, 3, 2][:rank]) for dtype in FLOATS for rank in (1, 3)}
    return made | {"pg_int32": np.zeros((4, 3), np.int32)}


def random_gradient(rng: Rng, held: Tables, *, spoiled: bool) -> Request:
    """A valid request, but for what is `spoiled` in some of them."""
    path, dialect = choose(rng, ROUTES)
    data_types, index_types, wrap = DIALECTS[path.removesuffix("/backward"), dialect]
    dtype, index_type = choose(rng, sorted(data_types & set(FLOATS))), choose(rng, sorted(index_types))
    shape = [int(size) for size in rng.integers(0 if rng.random() < 0.06 else 1, 5, rng.integers(1, 5))]
    given: dict[str, Any] = {"dialect": dialect} if dialect != "onnx-13" or rng.random() < 0.3 else {}
    if rng.random() < 0.15:
        given["tensor"] = choose(rng, [name for name, (own, _) in held.items() if own == dtype or spoiled])
        shape = list(held[given["tensor"]][1])
    sparse = rng.random() < 0.4
    if sparse or rng.random() < 0.2:
        given["sparse"] = sparse
    index_shape = _shapes(rng, path, dialect, given, shape, sparse=sparse and rng.random() < (0.8 if spoiled else 1))
    if rng.random() < 0.5:
        given["lda_coeff"] = choose(rng, (*COEFFICIENTS, 1e300) if dtype == "float64" else COEFFICIENTS)
    output = _output_shape(path, dialect, given, shape, index_shape)
    huge = "tensor" not in given and rng.random() < (0.1 if spoiled else 0.02)
    if huge and (spoiled or sparse):
        shape[0] = choose(rng, (2**31, 2**31, 2**62)) if spoiled else 2**31
        if prod(shape) > MOST_ELEMENTS and not spoiled:
            shape[0] = 9
    if spoiled:
        for _ in range(int(rng.integers(0, 3))):
            _spoil(rng, path, given, shape, index_shape, output)
    if "tensor" not in given and not (spoiled and rng.random() < 0.02):
        given["data_shape"] = shape
    grad_type = choose(rng, TYPES) if spoiled and rng.random() < 0.06 else dtype
    index_type = choose(rng, (*INTEGERS, "float32")) if spoiled and rng.random() < 0.06 else index_type
    bad = choose(rng, (0, 0.1, 0.6)) if spoiled or (path == AXIS and dialect == "openvino-8") else 0
    indices = _indices(rng, path, given, shape, index_shape, index_type, wrap, bad)
    request = Request(path, {"indices": indices, "grad_output": items(rng, grad_type, output)}, given)
    if spoiled and rng.random() < 0.12:
        spoil_values(rng, request)
    return request


def _shapes(rng: Rng, path: str, dialect: str, given: dict[str, Any], shape: list[int], *, sparse: bool) -> list[int]:
    """The shape of indices, for the parameters that it chooses: those of slices along the first axes if sparse."""
    rank = len(shape)
    few = [int(size) for size in rng.integers(0 if rng.random() < 0.1 else 1, 5, rng.integers(0, 3))]
    if path == ND:
        b = int(rng.integers(0, rank)) if dialect != "onnx-11" and not sparse else 0
        if b or rng.random() < 0.5:
            given["batch_dims"] = b
        return [*shape[:b], *few, int(rng.integers(1, rank - b + 1))]
    axis = choose(rng, (0, -rank)) if sparse else int(rng.integers(-rank, rank))
    if axis or dialect == "openvino-8" or rng.random() < 0.5:
        given["axis"] = axis
    if dialect != "openvino-8":
        return few
    b = int(rng.integers(0, axis % rank + 1))
    if b or rng.random() < 0.5:
        given["batch_dims"] = b
    return [*shape[:b], *few]


def _output_shape(
    path: str, dialect: str, given: dict[str, Any], shape: list[int], index_shape: list[int]
) -> list[int]:
    """The shape of the gather's output, of a request that breaks no rule on shapes."""
    b = given.get("batch_dims", 0)
    if path == ND:
        return [*index_shape[:-1], *shape[b + index_shape[-1] :]]
    axis = given.get("axis", 0) % len(shape)
    b = (b + len(index_shape) if b < 0 else b) if dialect == "openvino-8" else 0
    return [*shape[:axis], *index_shape[b:], *shape[axis + 1 :]]


def _indices(
    rng: Rng, path: str, given: dict[str, Any], shape: list[int], index_shape: list[int], dtype: str, wrap: bool,
    bad: float,
) -> Array:  # fmt: skip
    start, count = given.get("axis", 0), 1
    if path == ND and index_shape:
        start, count = given.get("batch_dims", 0), index_shape[-1]
    sizes = [shape[start + j] if -len(shape) <= start + j < len(shape) else 1 for j in range(count)]
    if dtype == "float32":
        return np.zeros(index_shape, np.float32)
    # Few rows of a huge one, so that some are named again.
    sizes = [size if size < 2**31 or rng.random() < 0.1 else 7 for size in sizes]
    wide = np.broadcast_to(np.array(sizes, np.int64), index_shape) if index_shape else np.array(sizes[0])
    held = min(np.iinfo(dtype).max, 2**62)
    return indices_around(rng, dtype, np.minimum(wide, held), wraps=wrap, bad=bad)


def _spoil(
    rng: Rng, path: str, given: dict[str, Any], shape: list[int], index_shape: list[int], output: list[int]
) -> None:
    name = "batch_dims" if path == ND else "axis"
    match int(rng.integers(13)):
        case 0:
            given[name] = choose(rng, (-7, -1, 1, 2, 6, 2**63, -(2**64)))
        case 1 if index_shape:
            index_shape[rng.integers(len(index_shape))] = choose(rng, (0, 1, 2, 6))
        case 2 if "tensor" not in given:
            shape[rng.integers(len(shape) or 1) :] = choose(rng, ([], [1], [0], [2, 3]))
        case 3:
            del index_shape[: choose(rng, (1, 9))]
        case 4:
            given["dialect"] = choose(rng, ("onnx-13", "onnx-12", "onnx-11", "onnx-1", "openvino-8"))
        case 5:
            given["device"] = choose(rng, ("gpu", "gpu", "tpu", "cpu"))
        case 6:
            given[choose(rng, ("axis", "batch_dims", "out_of_bounds", "fill_value"))] = 0
        case 7 if output:
            output[rng.integers(len(output))] = choose(rng, (0, 1, 2, 5))
        case 8:
            output.insert(0, 1)
        case 9:
            given["lda_coeff"] = choose(rng, (1e39, -1e300, "x", True))
        case 10:
            given["sparse"] = choose(rng, (True, 1, "yes"))
        case 11 if "tensor" in given:
            given["data_shape"] = [4, 3, 2]
        case 12:
            given["tensor"] = "pg_float32_1"


def faults_of(request: Request, held: Tables) -> list[Fault]:
    """The rules that a request breaks first, none for a valid one.

    Where among the rules it comes that a sparse gradient is along the first axes, the design does not say: it needs the
    rank for an axis that counts from the back.
    """
    found = first(_faults(request, held))
    return [*found, *_sparse_faults(request, held)]


def _shape_of(request: Request, held: Tables) -> list[int]:
    given = request.parameters
    return list(held[given["tensor"]][1]) if "tensor" in given else list(given.get("data_shape", [1]))


def _sparse_faults(request: Request, held: Tables) -> Iterator[Fault]:
    given, rank = request.parameters, len(_shape_of(request, held))
    at = given.get("batch_dims" if request.path == ND else "axis", 0)
    if request.path == AXIS and -rank <= at < rank:
        at %= rank
    if given.get("sparse") is True and at:
        yield Fault(Stage.FIELDS, "invalid_field", "parameter", "sparse")


def _faults(request: Request, held: Tables) -> Iterator[Fault]:
    path, given = request.path.removesuffix("/backward"), request.parameters
    dialect, shape = given.get("dialect", "onnx-13"), _shape_of(request, held)
    twin = Request(path, {"indices": request.arrays["indices"]}, given)
    gather_8 = gather_cases.is_gather_8(twin)
    known = {"dialect", "device", "lda_coeff", "sparse", "data_shape", "tensor"}
    known |= {"batch_dims"} if path == gather_cases.ND else {"axis", "batch_dims"} if gather_8 else {"axis"}
    if gather_8 and "axis" not in given:
        yield Fault(Stage.FIELDS, "invalid_field", "parameter", "axis")
    yield from of_fields(request, known, {name for route, name in DIALECTS if route == path})
    if ("tensor" in given) == ("data_shape" in given):
        name = "tensor" if "tensor" in given else "data_shape"
        yield Fault(Stage.FIELDS, "invalid_field", "parameter", name)
    coefficient = given.get("lda_coeff", 1)
    if isinstance(coefficient, str | bool):
        yield Fault(Stage.FIELDS, "invalid_field", "parameter", "lda_coeff")
    if not isinstance(given.get("sparse", False), bool):
        yield Fault(Stage.FIELDS, "invalid_field", "parameter", "sparse")
    yield from of_arrays(request)
    if (path, dialect) not in DIALECTS:
        return
    data_types, index_types, wrap = DIALECTS[path, dialect]
    floats, dtype = data_types & set(FLOATS), request.dtype("grad_output")
    if dtype in FLOATS and dtype != "float64" and not isinstance(coefficient, str | bool) and abs(coefficient) > 3.5e38:
        yield Fault(Stage.VALUES, "value_not_representable", "parameter", "lda_coeff")
    if "tensor" in given and held[given["tensor"]][0] not in floats:
        yield Fault(Stage.DATA_TYPE, "unsupported_dtype", "parameter", "tensor")
    yield from of_type(request, "indices", index_types, Stage.INDEX_TYPE)
    yield from of_type(request, "grad_output", frozenset(floats), Stage.UPDATES_TYPE)
    if "tensor" in given and dtype in TYPES and dtype != held[given["tensor"]][0]:
        yield Fault(Stage.UPDATES_TYPE, "unsupported_dtype", "dtype", "grad_output")
    yield from _shape_faults(request, twin, shape, wrap, fills=gather_8)


def _shape_faults(request: Request, twin: Request, shape: list[int], wrap: bool, *, fills: bool) -> Iterator[Fault]:
    """The gather's own rules, grad_output's shape and the limits."""
    given, index_shape = request.parameters, request.shape("indices")
    named = "tensor" if "tensor" in given else "data_shape"
    if not shape:
        yield Fault(Stage.RANK, "rank_too_small", "parameter", named)
    judge = gather_cases.faults_nd if request.path == ND else gather_cases.faults_axis
    found = [fault for fault in judge(twin, shape, index_shape, wrap) if not fills or fault.stage < Stage.INDEX_VALUES]
    yield from found
    if (
        any(fault.stage < Stage.INDEX_VALUES for fault in found)
        or not shape
        or (request.path == ND and not index_shape)
    ):
        return
    wanted = _output_shape(request.path, given.get("dialect", "onnx-13"), given, shape, index_shape)
    if request.shape("grad_output") != wanted:
        yield Fault(Stage.UPDATES_SHAPE, "updates_shape_mismatch", "shape", "grad_output")
    size = NUMPY[name_of(request.arrays["grad_output"])].itemsize
    if prod(shape) > MOST_ELEMENTS or prod(n for n in shape if n) * size > 2**63 - 1:
        yield Fault(Stage.LIMITS, "limit_exceeded", "parameter", named)
    elif given.get("sparse") is not True and prod(shape) * size > MOST_BYTES:
        yield Fault(Stage.LIMITS, "output_too_large", "parameter", named)


def looped(request: Request, held: Tables) -> dict[str, Array]:
    """The outputs of a valid request: each element of grad_output is added where it came from, one after the other."""
    with np.errstate(all="ignore"):
        return _looped(request, held)


def _looped(request: Request, held: Tables) -> dict[str, Array]:
    indices, grad_output = request.arrays["indices"], request.arrays["grad_output"]
    given, shape = request.parameters, _shape_of(request, held)
    twin = Request(request.path.removesuffix("/backward"), {}, given)
    wrap, dtype = gather_cases.wraps(twin), grad_output.dtype
    number = np.float64 if dtype == np.float64 else np.float32
    b = given.get("batch_dims", 0)
    sums: dict[tuple[int, ...], Any] = {}
    named: set[tuple[int, ...]] = set()

    def counted(value: Any, size: int) -> int:
        return int(value) + size if wrap and int(value) < 0 else int(value)

    if request.path == ND:
        depth, q = indices.shape[-1], indices.ndim
        first_axis, slice_shape = b, shape[b + depth :]
        origins = {}
        for row in np.ndindex(indices.shape[:-1]):
            chosen = tuple(counted(indices[(*row, j)], shape[b + j]) for j in range(depth))
            origins[row] = (*row[:b], *chosen)
            named.add(chosen)
        for place in np.ndindex(grad_output.shape):
            _add(sums, (*origins[place[: q - 1]], *place[q - 1 :]), number(grad_output[place]))
    else:
        axis = given.get("axis", 0) % len(shape)
        b += indices.ndim if b < 0 else 0
        q, size = indices.ndim - b, shape[axis]
        first_axis, slice_shape = axis, shape[axis + 1 :]
        inside = {place: counted(indices[place], size) for place in np.ndindex(indices.shape)}
        # Of what is filled nothing flows back.
        inside = {place: index for place, index in inside.items() if 0 <= index < size}
        named = {(index,) for index in inside.values()}
        for place in np.ndindex(grad_output.shape):
            came = (*place[:b], *place[axis : axis + q])
            if came in inside:
                _add(sums, (*place[:axis], inside[came], *place[axis + q :]), number(grad_output[place]))
    coefficient = number(given.get("lda_coeff", 1))
    if not given.get("sparse", False):
        # np.ndindex holds the range of each dimension, also beside one of 0.
        places = np.ndindex(*shape) if prod(shape) else ()
        found = [sums.get(place, number(0)) * coefficient for place in places]
        return {"grad_data": np.array(found, number).astype(dtype).reshape(shape)}
    assert first_axis == 0
    rows = sorted(named)
    found = [sums[(*row, *rest)] * coefficient for row in rows for rest in np.ndindex(*slice_shape)]
    entry = (len(rows), indices.shape[-1]) if request.path == ND else (len(rows),)
    return {
        "grad_indices": np.array(rows, np.int64).reshape(entry),
        "grad_values": np.array(found, number).astype(dtype).reshape(len(rows), *slice_shape),
    }


def _add(sums: dict[tuple[int, ...], Any], place: tuple[int, ...], value: Any) -> None:
    sums[place] = sums.get(place, type(value)(0)) + value


def kinds_of(request: Request) -> list[Any]:
    """What a valid request is an example of."""
    given = request.parameters
    dialect, sparse = given.get("dialect", "onnx-13"), given.get("sparse", False)
    return [(request.path, dialect, sparse), (request.path, name_of(request.arrays["grad_output"]))]
