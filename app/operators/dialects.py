"""The dialects, one row each: which types they take, whether indices wrap, and the wording of every rule.

`clause` is the number that the dialect's own text gives the rule, None where that text numbers nothing: the Gather,
GatherElements and OpenVINO texts number no rule. GatherND-11 numbers its three rules 1 to 3, GatherND-12 and -13 their
five 1 to 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.errors import Rule
from app.tensors.dtypes import DTYPES, INTEGERS

_ALL = tuple(DTYPES)
_NO_BFLOAT16 = tuple(name for name in _ALL if name != "bfloat16")
_NO_COMPLEX = tuple(name for name, row in DTYPES.items() if row.kind != "complex")


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """One operator version: `rules` is by error code, with `data_dtype` and `index_dtype` for unsupported_dtype."""

    name: str
    data_dtypes: frozenset[str]
    index_dtypes: frozenset[str]
    wrap: bool
    has_batch_dims: bool
    rules: Mapping[str, Rule]


def _dialect(
    name: str,
    data: tuple[str, ...],
    indices: tuple[str, ...],
    *,
    wrap: bool,
    rules: Mapping[str, tuple[str | None, str]],
    has_batch_dims: bool = True,
) -> Dialect:
    table = {key: Rule(name, clause, text) for key, (clause, text) in rules.items()}
    return Dialect(name, frozenset(data), frozenset(indices), wrap, has_batch_dims, table)


_BOUNDS = "-data_shape[i] <= indices[...,i] <= data_shape[i] - 1"
_ONNX_TYPES: dict[str, tuple[str | None, str]] = {
    "data_dtype": (None, "T in (every tensor type of this operator version)"),
    "index_dtype": (None, "indices - tensor(int64)"),
}
_GATHERND_11: dict[str, tuple[str | None, str]] = _ONNX_TYPES | {
    "rank_too_small": ("1", "r >= 1 and q >= 1 are to be honored"),
    "batch_dims_out_of_range": (None, "GatherND-11 has no attribute batch_dims"),
    "index_depth_out_of_range": (
        "2",
        "The `indices_shape[-1]` should have a value between 1 (inclusive) and rank `r` (inclusive)",
    ),
    "index_out_of_bounds": ("3", _BOUNDS),
}
_GATHERND_12: dict[str, tuple[str | None, str]] = _ONNX_TYPES | {
    "rank_too_small": ("1", "r >= 1 and q >= 1 are to be honored"),
    "batch_shape_mismatch": (
        "2",
        "The first `b` dimensions of the shape of `indices` tensor and `data` tensor must be equal",
    ),
    "batch_dims_out_of_range": ("3", "b < min(q, r) is to be honored"),
    "index_depth_out_of_range": (
        "4",
        "The `indices_shape[-1]` should have a value between 1 (inclusive) and rank `r-b` (inclusive)",
    ),
    "index_out_of_bounds": ("5", _BOUNDS),
}
_OPENVINO_8: dict[str, tuple[str | None, str]] = {
    "data_dtype": (None, "T: any supported type"),
    "index_dtype": (None, "T_IND: any supported integer types"),
    "rank_too_small": (None, "A tensor of a rank not less than 1"),
    "batch_dims_out_of_range": (None, "integer number that belongs to [0; min(data.rank, indices.rank))"),
    "batch_shape_mismatch": (None, "It requires the first b dimensions in data and indices tensors to be equal"),
    "index_depth_out_of_range": (
        None,
        "The last dimension of indices tensor must be not greater than a rank of data tensor; here it is at least 1 "
        "and at most data.rank - batch_dims",
    ),
    "index_out_of_bounds": (
        None,
        "all indices are in the range [0, s-1] where s is the corresponding dimension to which this index is applied",
    ),
}
_GATHER: dict[str, tuple[str | None, str]] = {
    "data_dtype": (None, "T in (every tensor type of this operator version)"),
    "index_dtype": (None, "Tind in (tensor(int32), tensor(int64))"),
    "rank_too_small": (None, "Given data tensor of rank r >= 1"),
    "axis_out_of_range": (None, "Accepted range is [-r, r-1] where r = rank(data)"),
    "index_out_of_bounds": (
        None,
        "All index values are expected to be within bounds [-s, s-1] along axis of size s",
    ),
}
_GATHER_1 = _GATHER | {
    "index_out_of_bounds": (None, "indices - tensor of int32/int64 indices, each in [0, s-1] along axis of size s"),
}
_GATHER_ELEMENTS: dict[str, tuple[str | None, str]] = {
    "data_dtype": (None, "T in (every tensor type of this operator version)"),
    "index_dtype": (None, "Tind in (tensor(int32), tensor(int64))"),
    "rank_too_small": (None, "Tensor of rank r >= 1"),
    "rank_mismatch": (None, "Tensor of int32/int64 indices, with the same rank r as the input"),
    "axis_out_of_range": (None, "Accepted range is [-r, r-1] where r = rank(data)"),
    "indices_shape_mismatch": (
        None,
        "out[i][j][k] = input[index[i][j][k]][j][k] if axis = 0, and so on; here each place in indices must be one in "
        "data, but for the axis",
    ),
    "index_out_of_bounds": (
        None,
        "All index values are expected to be within bounds [-s, s-1] along axis of size s",
    ),
}
_INT64 = ("int64",)
_INT32_64 = ("int32", "int64")

GATHERND: Final[Mapping[str, Dialect]] = {
    row.name: row
    for row in (
        _dialect("onnx-13", _ALL, _INT64, wrap=True, rules=_GATHERND_12),
        _dialect("onnx-12", _NO_BFLOAT16, _INT64, wrap=True, rules=_GATHERND_12),
        _dialect("onnx-11", _NO_BFLOAT16, _INT64, wrap=True, rules=_GATHERND_11, has_batch_dims=False),
        _dialect("openvino-8", _NO_COMPLEX, INTEGERS, wrap=False, rules=_OPENVINO_8),
    )
}
GATHER: Final[Mapping[str, Dialect]] = {
    row.name: row
    for row in (
        _dialect("onnx-13", _ALL, _INT32_64, wrap=True, rules=_GATHER),
        _dialect("onnx-11", _NO_BFLOAT16, _INT32_64, wrap=True, rules=_GATHER),
        _dialect("onnx-1", _NO_BFLOAT16, _INT32_64, wrap=False, rules=_GATHER_1),
    )
}
GATHER_ELEMENTS: Final[Mapping[str, Dialect]] = {
    row.name: row
    for row in (
        _dialect("onnx-13", _ALL, _INT32_64, wrap=True, rules=_GATHER_ELEMENTS),
        _dialect("onnx-11", _NO_BFLOAT16, _INT32_64, wrap=True, rules=_GATHER_ELEMENTS),
    )
}
