"""What a gradient of a gather is, by loops that add one element after the other."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from tests.parity import gather_cases
from tests.parity.items import Array
from tests.parity.messages import Request

ND, AXIS = "/gathernd/backward", "/gather/backward"
Tables = Mapping[str, tuple[str, list[int]]]
"""The resident tensors that there are: type and shape by name."""


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
