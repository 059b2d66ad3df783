"""Mistakes that well-known runtimes make: overflows, offsets that happen to be in range, and empty tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tests.conformance.cases import Case, Rule, at, refused
from tests.http.forms import int64, tensor
from tests.http.rules import position

CLAUSES = {
    "onnx-13": ("2", "4", "5"),
    "onnx-12": ("2", "4", "5"),
    "onnx-11": (None, "2", "3"),
    "openvino-8": (None,) * 3,
}
"""Of GatherND's texts: the clauses of the batch shape, the index depth and the bounds."""
FAR = (2**62, -(2**62), 2**63 - 1, -(2**63), 2**60, 2**61, -(2**61), 2**32, -(2**32), 2**31)
HUGE = (2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)


def floats(*shape: int) -> Any:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def outside(
    data: Any, indices: dict[str, Any], path: str = "/gathernd", rule: Rule = ("onnx-13", "5"), **more: Any
) -> Case:
    """A gather some of whose indices are out of bounds: those outside of [-size, size), or of [0, size) if unsigned."""
    shape = data.shape
    first = more.get("batch_dims", 0) if path == "/gathernd" else more.get("axis", 0)
    depth = indices["shape"][-1] if path == "/gathernd" else 1
    low = 0 if rule[0] == "openvino-8" else 1
    places = []
    for item, value in enumerate(indices["values"]):
        axis = first + item % depth
        size = shape[axis]
        if not -size * low <= value < size:
            where = position(item, indices["shape"])
            allowed = [-size * low, size - 1] if size else None
            pointer = f"/indices/values/{item}"
            places += at(pointer, position=where, value=value, axis=axis, size=size, allowed=allowed)
    given = {"data": data, "indices": indices, **more}
    return refused("index_out_of_bounds", given, places, path, rule)


def unlike(data: Sequence[int], indices: Sequence[int], axis: int, dialect: str = "onnx-13", **more: Any) -> Case:
    """Batches of other sizes."""
    items = [0] * int(np.prod(indices))
    place = at("/indices/shape", value=indices[axis], axis=axis, size=data[axis], allowed=None)
    given = {"data": floats(*data), "indices": int64(indices, items), "dialect": dialect, **more}
    return refused("batch_shape_mismatch", given, place, rule=(dialect, CLAUSES[dialect][0]))


def _traps() -> Iterator[Case]:
    for dialect in ("onnx-13", "onnx-12", "openvino-8"):
        yield unlike([2, 3], [4, 1], 0, dialect, batch_dims=1)
    for data, wrong in (((1, 3), (3, 1)), ((3, 3), (1, 1)), ((0, 3), (1, 1))):
        yield unlike(data, wrong, 0, batch_dims=1)
    for size in HUGE:
        for b in (size, -size):
            given = {"data": floats(2, 2), "indices": int64([2, 1], [0, 1]), "batch_dims": b}
            place = at("/batch_dims", value=b if b >= -(2**63) else str(b), allowed=[0, 1])
            yield refused("batch_dims_out_of_range", given, place, rule=("onnx-13", "3"))
            given = {"data": floats(2, 2), "indices": int64([2], [0, 1]), "axis": b}
            place = at("/axis", value=b if b >= -(2**63) else str(b), allowed=[-2, 1])
            yield refused("axis_out_of_range", given, place, "/gather", ("onnx-13", None))
    for dialect, (_, depth, _) in CLAUSES.items():
        for shape in ([0], [3, 0], [0, 0]):
            given = {"data": floats(2, 2), "indices": int64(shape, []), "dialect": dialect}
            place = at("/indices/shape", value=0, allowed=[1, 2])
            yield refused("index_depth_out_of_range", given, place, rule=(dialect, depth))
    given = {"data": floats(2, 2), "indices": int64([2, 2], [0] * 4), "batch_dims": 1}
    place = at("/indices/shape", value=2, allowed=[1, 1])
    yield refused("index_depth_out_of_range", given, place, rule=("onnx-13", "4"))
    for index in FAR:
        yield outside(floats(3, 4), int64([1, 2], [index, 1]))
    for pair in ([0, 5], [0, -5], [2, -8], [-4, 11], [3, -4]):
        yield outside(floats(3, 4), int64([1, 2], pair))
    for index in (0, -1, 1):
        yield outside(floats(0), int64([1, 1], [index]))
    yield outside(floats(0, 0), int64([1, 1], [0]))
    yield outside(floats(2, 0, 0), int64([1, 2], [0, 0]))
    yield outside(floats(2, 3, 0), int64([1, 1], [2]))
    yield outside(floats(0, 3), int64([1], [3]), "/gather", ("onnx-13", None), axis=1)
    for index in (2**64 - 1, 2**63, 2**63 + 1, 2**64 - 3):
        unsigned = tensor("uint64", [1, 1], [index])
        yield outside(floats(4), unsigned, rule=("openvino-8", None), dialect="openvino-8")
    yield outside(floats(2, 2), int64([1, 2], [-1, -2]), rule=("openvino-8", None), dialect="openvino-8")
    yield from _overflows()


def _overflows() -> Iterator[Case]:
    """Shapes whose product wraps to the number of values that came, or hides behind a dimension of 0."""
    good = {"data": tensor("float32", [2, 2], [0, 1, 2, 3]), "indices": int64([1, 1], [0])}
    for shape in ([2**32, 2**32], [2**63, 2], [2**62, 4], [2**16] * 4, [2**33, 2**31], [10**30, 1]):
        for role in ("data", "indices"):
            for items in ([], [0]):
                given = good | {role: good[role] | {"shape": shape, "values": items}}
                yield refused("element_count_mismatch", given, at(f"/{role}/values"))
    for shape, limit in (([0, 2**63], "dimension"), ([2**32, 2**32, 0], "bytes"), ([2**62, 0, 4], "bytes"),
                         ([0, 10**30], "dimension"), ([2**63 - 1, 0], "bytes")):  # fmt: skip
        given = {"data": tensor("float32", shape, []), "indices": int64([0, 1], [])}
        facts = {"limit": limit, "maximum": 2**63 - 1}
        yield refused("limit_exceeded", given, at("/data/shape"), facts=facts)
    row, many = np.full((1, 16384), 0.5, np.float32), np.zeros(16385, np.int64)
    facts = {"limit": "output_bytes", "maximum": 2**30}
    yield refused("output_too_large", {"data": row, "indices": many[:, np.newaxis]}, at("/indices/shape"), facts=facts)
    yield refused("output_too_large", {"data": row, "indices": many}, at("/indices/shape"), "/gather", facts=facts)


TRAPS = list(_traps())
