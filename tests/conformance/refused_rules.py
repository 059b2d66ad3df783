"""Shapes, batch_dims and axes that break a rule, for each gather and scatter in each of its dialects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.conformance.cases import Case, refused
from tests.conformance.refused_fields import body
from tests.http.forms import int64, tensor
from tests.http.rules import DIALECTS
from tests.parity.scatter_cases import REDUCTIONS

ND, AXIS, ELEMENTS, SCATTERND, SCATTER_ELEMENTS = (
    "/gathernd", "/gather", "/gather_elements", "/scatternd", "/scatter_elements",
)  # fmt: skip
EVERY = [*DIALECTS, *((path, dialect) for path in (SCATTERND, SCATTER_ELEMENTS) for dialect in REDUCTIONS)]
_NEWER = {
    "rank_too_small": "1",
    "batch_shape_mismatch": "2",
    "batch_dims_out_of_range": "3",
    "index_depth_out_of_range": "4",
}
CLAUSES: dict[str, dict[str, str]] = {
    "onnx-13": _NEWER,
    "onnx-12": _NEWER,
    "onnx-11": {"rank_too_small": "1", "index_depth_out_of_range": "2"},
}
"""Of GatherND's texts; the others number nothing."""
HUGE = (2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63), -(2**64), 10**30)


def shown(number: int) -> Any:
    """A number as an error has it."""
    return number if -(2**63) <= number < 2**64 else str(number)


def broken(code: str, path: str, dialect: str, pointer: str, place: dict[str, Any], **changes: Any) -> Case:
    """A valid request but for the changes."""
    given = body(path) | {"dialect": dialect} | ({} if path in (ND, SCATTERND) else {"axis": 0}) | changes
    clause = CLAUSES.get(dialect, {}).get(code) if path == ND else None
    return refused(code, given, [{"pointer": pointer, **place}], path, (dialect, clause))


def floats(*shape: int) -> Any:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _tuples(path: str, dialect: str) -> Iterator[Case]:
    """GatherND and ScatterND: ranks, and the depth of the index tuples."""
    scatters = path == SCATTERND
    updates = {"updates": tensor("float32", [], [1])} if scatters else {}
    scalar = {"data": tensor("float32", [], [1]), "indices": int64([] if scatters else [1], [0]), **updates}
    yield broken("rank_too_small", path, dialect, "/data/shape", {}, **scalar)
    yield broken("rank_too_small", path, dialect, "/indices/shape", {}, indices=int64([], [0]))
    for shape in ([1, 0], [1, 3], [0], [3, 0], [0, 0]):
        place = {"value": shape[-1], "allowed": [1, 2]}
        indices = int64(shape, [0] * int(np.prod(shape)))
        yield broken("index_depth_out_of_range", path, dialect, "/indices/shape", place, indices=indices)


def _batches(dialect: str) -> Iterator[Case]:
    """GatherND's batch_dims."""
    allowed = [0, 0] if dialect == "onnx-11" else [0, 1]
    for b in (1, 2, -1, *HUGE):
        if b > allowed[1] or b < 0:
            place = {"value": shown(b), "allowed": allowed}
            yield broken("batch_dims_out_of_range", ND, dialect, "/batch_dims", place, batch_dims=b)
    if dialect == "onnx-11":
        return
    for data, wrong, axis in (((2, 3, 1), [2, 4, 1], 1), ((2, 3), [4, 1], 0), ((1, 3), [3, 1], 0), ((0, 3), [1, 1], 0)):
        place = {"value": wrong[axis], "axis": axis, "size": data[axis], "allowed": None}
        indices = int64(wrong, [0] * int(np.prod(wrong)))
        given = {"data": floats(*data), "indices": indices, "batch_dims": axis + 1}
        yield broken("batch_shape_mismatch", ND, dialect, "/indices/shape", place, **given)
    given = {"data": floats(2, 2), "indices": int64([2, 2], [0] * 4), "batch_dims": 1}
    place = {"value": 2, "allowed": [1, 1]}
    yield broken("index_depth_out_of_range", ND, dialect, "/indices/shape", place, **given)


def _axes(path: str, dialect: str) -> Iterator[Case]:
    """Every operator with an axis."""
    elements = {"indices": int64([], [0])} if path != AXIS else {}
    updates = {"updates": tensor("float32", [], [1])} if path == SCATTER_ELEMENTS else {}
    scalar = {"data": tensor("float32", [], [1]), **elements, **updates}
    yield broken("rank_too_small", path, dialect, "/data/shape", {}, **scalar)
    for axis in (2, -3, *HUGE):
        place = {"value": shown(axis), "allowed": [-2, 1]}
        yield broken("axis_out_of_range", path, dialect, "/axis", place, axis=axis)


def _elements(path: str, dialect: str) -> Iterator[Case]:
    """GatherElements and ScatterElements: indices have data's rank, and no more entries along the other axes."""
    for shape in ([], [1], [1, 1, 1]):
        place = {"value": len(shape), "allowed": [2, 2]}
        yield broken("rank_mismatch", path, dialect, "/indices/shape", place, indices=int64(shape, [0]))
    equal = dialect == "openvino-6"
    for size in (3, 1) if equal else (3,):
        place = {"value": size, "axis": 1, "size": 2, "allowed": [2 if equal else 0, 2]}
        indices = int64([1, size], [0] * size)
        yield broken("indices_shape_mismatch", path, dialect, "/indices/shape", place, indices=indices)


def _gather_8() -> Iterator[Case]:
    """The batch_dims of OpenVINO's Gather-8."""
    for shape, axis, b, allowed in (
        ([2, 2], 2, 3, [-2, 2]), ([2, 2], 2, -3, [-2, 2]), ([2, 2, 2, 2], 2, 2**63, [-3, 3]),
        ([2, 2], 2, -(2**63) - 1, [-2, 2]), ([], 0, 1, [0, 0]), ([2, 2], 1, 2, [0, 1]), ([2, 2], -3, 1, [0, 0]),
        ([2, 2], 0, -1, [0, 0]), ([2, 2, 2, 2], 2, -1, [0, 2]), ([2, 2, 2], 2, 3, [0, 2]),
    ):  # fmt: skip
        indices = int64(shape, [0] * int(np.prod(shape)))
        given = {"data": floats(2, 2, 2), "indices": indices, "axis": axis, "batch_dims": b}
        place = {"value": shown(b), "allowed": allowed}
        yield broken("batch_dims_out_of_range", AXIS, "openvino-8", "/batch_dims", place, **given)
    given = {"data": floats(2, 3, 1), "indices": int64([2, 4], [0] * 8), "axis": 2, "batch_dims": 2}
    place = {"value": 4, "axis": 1, "size": 3, "allowed": None}
    yield broken("batch_shape_mismatch", AXIS, "openvino-8", "/indices/shape", place, **given)


def _rules() -> Iterator[Case]:
    for path, dialect in EVERY:
        if path in (ND, SCATTERND):
            yield from _tuples(path, dialect)
        else:
            yield from _axes(path, dialect)
        if path == ND:
            yield from _batches(dialect)
        if path in (ELEMENTS, SCATTER_ELEMENTS):
            yield from _elements(path, dialect)
    yield from _gather_8()


REFUSED_RULES = [*_rules()]
