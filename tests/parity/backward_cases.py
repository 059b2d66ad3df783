"""Random gradients of gathers, and loops that add one element after the other."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from tests.http.forms import FLOATS
from tests.http.rules import DIALECTS
from tests.parity import gather_cases
from tests.parity.items import Array, Rng, choose, indices_around, items
from tests.parity.messages import Request

ND, AXIS = "/gathernd/backward", "/gather/backward"
ROUTES = sorted((f"{path}/backward", dialect) for path, dialect in DIALECTS if path != gather_cases.ELEMENTS)
COEFFICIENTS = (1, 1.0, -0.5, 0, -0.0, 1e-3, 3, -1e30, 1e-45, 2.5e38)
MOST_ELEMENTS, MOST_BYTES = 2**33, 2**30
Tables = Mapping[str, tuple[str, list[int]]]
"""The resident tensors that there are: type and shape by name."""


def tables() -> dict[str, Array]:
    """Tensors whose shapes requests name: two of each float type, and one of integers."""
    rng = np.random.default_rng(5)
    made = {f"pg_{dtype}_{rank}": items(rng, dtype, [4, 3, 2][:rank]) for dtype in FLOATS for rank in (1, 3)}
    return made | {"pg_int32": np.zeros((4, 3), np.int32)}


def random_gradient(rng: Rng, held: Tables) -> Request:
    """A valid request."""
    while True:
        request, shape = _drawn(rng, held)
        fills = request.path == AXIS and request.parameters.get("dialect") == "openvino-8"
        if fills or 0 not in shape or not request.arrays["indices"].size:
            return request


def _drawn(rng: Rng, held: Tables) -> tuple[Request, list[int]]:
    path, dialect = choose(rng, ROUTES)
    data_types, index_types, wrap = DIALECTS[path.removesuffix("/backward"), dialect]
    dtype, index_type = choose(rng, sorted(data_types & set(FLOATS))), choose(rng, sorted(index_types))
    shape = [int(size) for size in rng.integers(0 if rng.random() < 0.06 else 1, 5, rng.integers(1, 5))]
    given: dict[str, Any] = {"dialect": dialect} if dialect != "onnx-13" or rng.random() < 0.3 else {}
    if rng.random() < 0.15:
        given["tensor"] = choose(rng, [name for name, (own, _) in held.items() if own == dtype])
        shape = list(held[given["tensor"]][1])
    sparse = rng.random() < 0.4
    if sparse or rng.random() < 0.2:
        given["sparse"] = sparse
    index_shape = _shapes(rng, path, dialect, given, shape, sparse=sparse)
    if rng.random() < 0.5:
        given["lda_coeff"] = choose(rng, (*COEFFICIENTS, 1e300) if dtype == "float64" else COEFFICIENTS)
    output = _output_shape(path, dialect, given, shape, index_shape)
    if sparse and "tensor" not in given and rng.random() < 0.02:
        shape[0] = 2**31
        if prod(shape) > MOST_ELEMENTS:
            shape[0] = 9
    if "tensor" not in given:
        given["data_shape"] = shape
    bad = choose(rng, (0, 0.1, 0.6)) if path == AXIS and dialect == "openvino-8" else 0
    indices = _indices(rng, path, given, shape, index_shape, index_type, wrap, bad)
    return Request(path, {"indices": indices, "grad_output": items(rng, dtype, output)}, given), shape


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


def _shape_of(request: Request, held: Tables) -> list[int]:
    given = request.parameters
    return list(held[given["tensor"]][1]) if "tensor" in given else list(given.get("data_shape", [1]))


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
