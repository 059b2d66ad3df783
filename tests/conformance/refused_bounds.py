"""Requests with out-of-bounds indices: near and far ones for each operator and dialect, and into empty tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.conformance.cases import Case, at, refused
from tests.http.forms import int64, tensor
from tests.http.rules import DIALECTS, position
from tests.parity.items import Array

ND, AXIS, ELEMENTS = "/gathernd", "/gather", "/gather_elements"
SCATTERS = ("/scatternd", "/scatter_elements")
CLAUSES = {"onnx-13": "5", "onnx-12": "5", "onnx-11": "3"}
"""Of GatherND's texts: the clauses of the bounds."""
FAR = (2**62, -(2**62), 2**63 - 1, -(2**63), 2**60, 2**61, -(2**61), 2**32, -(2**32), 2**31)
MOST_PLACES = 10
"""More than so many are not told one by one."""


def floats(*shape: int) -> Array:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def outside(path: str, data: Array, indices: dict[str, Any], dialect: str | None = None, **more: Any) -> Case:
    """A request some of whose indices are out of bounds, of the operator's usual dialect if none is named."""
    named = dialect or ("onnx-18" if path in SCATTERS else "onnx-13")
    wraps = path in SCATTERS or DIALECTS[path, named][2]
    nd = path.endswith("nd")
    first = more.get("batch_dims", 0) if nd else more.get("axis", 0) % data.ndim
    depth = indices["shape"][-1] if nd else 1
    places = []
    for item, value in enumerate(indices["values"]):
        axis = first + item % depth
        size = data.shape[axis]
        if not -size * wraps <= value < size:
            where = position(item, indices["shape"])
            allowed = [-size * wraps, size - 1] if size else None
            places += at(f"/indices/values/{item}", position=where, value=value, axis=axis, size=size, allowed=allowed)
    given = {"data": data, "indices": indices, **more} | ({} if dialect is None else {"dialect": dialect})
    if path in SCATTERS:
        shape = indices["shape"]
        given["updates"] = np.zeros((*shape[:-1], *data.shape[depth:]) if nd else shape, data.dtype)
    clause = CLAUSES.get(named) if path == ND else None
    return refused("index_out_of_bounds", given, places[:MOST_PLACES], path, (named, clause), len(places))


def _every_dialect() -> Iterator[Case]:
    for path, dialect in DIALECTS:
        more: dict[str, Any] = {} if path == ND else {"axis": 0}
        if (path, dialect) == (AXIS, "openvino-8"):
            more["out_of_bounds"] = "error"
        shape = [3, 2] if path == ELEMENTS else [3, 1] if path == ND else [3]
        count = int(np.prod(shape))
        yield outside(path, floats(3, 2), int64(shape, [0, 5, 3, 1, -4, 2][:count]), dialect, **more)
        if not DIALECTS[path, dialect][2]:
            yield outside(path, floats(3, 2), int64(shape, [0, -1, 1, 2, -3, 0][:count]), dialect, **more)
    for path in SCATTERS:
        for dialect in ("onnx-18", "onnx-16", "onnx-13", "onnx-11"):
            shape = [2, 1] if path == "/scatternd" else [2, 2]
            yield outside(path, floats(3, 2), int64(shape, [-4, 3, 0, 3][: 2 * shape[1]]), dialect)


def _far() -> Iterator[Case]:
    """Products that overflow, or that come to an offset inside."""
    for index in FAR:
        yield outside(ND, floats(3, 4), int64([1, 2], [index, 1]))
        yield outside(AXIS, floats(3, 2), int64([2], [2, index]))
        yield outside(ELEMENTS, floats(3, 2), int64([2, 2], [0, 2, 1, index]))
        yield outside("/scatternd", floats(3, 2), int64([2, 1], [2, index]))
        yield outside("/scatter_elements", floats(3, 2), int64([2, 2], [0, 2, 1, index]))
    for pair in ([0, 5], [0, -5], [2, -8], [-4, 11], [3, -4]):
        yield outside(ND, floats(3, 4), int64([1, 2], pair))
    yield outside("/scatternd", floats(3, 2), int64([1, 2], [0, 3]))
    for index in (2**64 - 1, 2**63, 2**63 + 1, 2**64 - 3):
        yield outside(ND, floats(4), tensor("uint64", [1, 1], [index]), "openvino-8")
    unsigned = tensor("uint64", [2], [2**64 - 1, 1])
    yield outside(AXIS, floats(2), unsigned, "openvino-8", axis=0, out_of_bounds="error")


def _places() -> Iterator[Case]:
    """Along other axes, in batches, of a scalar index, of strings, and more than are told one by one."""
    for axis in (1, -1):
        for dialect, value in (("onnx-13", 3), ("onnx-13", -4), ("onnx-11", 3), ("onnx-1", -1)):
            yield outside(AXIS, floats(2, 3), int64([2], [0, value]), dialect, axis=axis)
    yield outside(ELEMENTS, floats(2, 3), int64([2, 2], [0, 0, 5, -4]), axis=1)
    yield outside(ND, floats(2, 3, 4), int64([2, 1, 2], [0, 0, 2, 4]), batch_dims=1)
    batched = {"axis": -1, "batch_dims": 1, "out_of_bounds": "error"}
    yield outside(AXIS, floats(2, 2, 3), int64([2, 2], [0, 1, 2, -4]), "openvino-8", **batched)
    yield outside(AXIS, floats(2), int64([], [2]))
    yield outside(ND, np.array(["a", "b"], object), int64([1, 1], [2]))
    many = [0, 4, 9, -5] * 6
    for path, shape in ((ND, [24, 1]), (AXIS, [24]), (ELEMENTS, [12, 2])):
        yield outside(path, floats(3, 2), int64(shape, many))


def _empty() -> Iterator[Case]:
    for index in (0, -1, 1):
        yield outside(ND, floats(0), int64([1, 1], [index]))
    yield outside(ND, floats(0, 0), int64([1, 1], [0]))
    yield outside(ND, floats(2, 0, 0), int64([1, 2], [0, 0]))
    yield outside(ND, floats(2, 3, 0), int64([1, 1], [2]))
    yield outside(AXIS, floats(0, 3), int64([1], [3]), axis=1)
    empty = {"axis": 2, "batch_dims": 1, "out_of_bounds": "error"}
    yield outside(AXIS, floats(2, 0, 3), int64([2, 2], [0, 0, 3, 0]), "openvino-8", **empty)
    yield outside(ELEMENTS, floats(2, 0), int64([2, 1], [0, 0]), axis=1)
    for shape, index in (((0, 3), 0), ((2, 0), 2)):
        yield outside("/scatternd", floats(*shape), int64([1, 1], [index]))


REFUSED_BOUNDS = [*_every_dialect(), *_far(), *_places(), *_empty()]
