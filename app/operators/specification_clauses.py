"""The wording and clause number of every rule, by specification. Errors cite them.

The keys are error codes. For unsupported_dtype, they are `data_dtype`, `index_dtype` and so on. The number is None if
the specification does not number its rules: Gather, GatherElements, ScatterND, ScatterElements, OpenVINO and ONNX
Runtime. GatherND-11 numbers its three rules 1 to 3; GatherND-12 and -13 number their five rules 1 to 5.
"""

from __future__ import annotations

from typing import Final

Clauses = dict[str, tuple[str | None, str]]
"""Number and text of each clause."""

_BOUNDS = "-data_shape[i] <= indices[...,i] <= data_shape[i] - 1"
_WITHIN_AXIS: Final = (None, "All index values are expected to be within bounds [-s, s-1] along axis of size s")
_ONNX_TYPES: Final[Clauses] = {
    "data_dtype": (None, "T in (every tensor type of this operator version)"),
    "index_dtype": (None, "indices - tensor(int64)"),
}
GATHERND_11: Final[Clauses] = _ONNX_TYPES | {
    "rank_too_small": ("1", "r >= 1 and q >= 1 are to be honored"),
    "batch_dims_out_of_range": (None, "GatherND-11 has no attribute batch_dims"),
    "index_depth_out_of_range": (
        "2",
        "The `indices_shape[-1]` should have a value between 1 (inclusive) and rank `r` (inclusive)",
    ),
    "index_out_of_bounds": ("3", _BOUNDS),
}
GATHERND_12: Final[Clauses] = _ONNX_TYPES | {
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
OPENVINO_8: Final[Clauses] = {
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
GATHER_11: Final[Clauses] = {
    "data_dtype": (None, "T in (every tensor type of this operator version)"),
    "index_dtype": (None, "Tind in (tensor(int32), tensor(int64))"),
    "rank_too_small": (None, "Given data tensor of rank r >= 1"),
    "axis_out_of_range": (None, "Accepted range is [-r, r-1] where r = rank(data)"),
    "index_out_of_bounds": _WITHIN_AXIS,
}
GATHER_1: Final[Clauses] = GATHER_11 | {
    "index_out_of_bounds": (None, "indices - tensor of int32/int64 indices, each in [0, s-1] along axis of size s"),
}
GATHER_8: Final[Clauses] = {
    "data_dtype": (None, "T: any supported type"),
    "index_dtype": (None, "T_IND: any supported integer types"),
    "rank_too_small": (
        None,
        "Allowed values are from [-len(data.shape), len(data.shape) - 1]; for data of rank 0 there is no axis",
    ),
    "axis_out_of_range": (None, "Allowed values are from [-len(data.shape), len(data.shape) - 1]"),
    "batch_dims_out_of_range": (
        None,
        "[-min(data.rank, indices.rank); min(data.rank, indices.rank)] and batch_dims' <= axis'",
    ),
    "batch_shape_mismatch": (None, "It requires the first b dimensions in data and indices tensors to be equal"),
    "index_out_of_bounds": (
        None,
        "Allowed values for indices are in the range [-data.shape[axis], data.shape[axis] - 1]. If index value exceed "
        "allowed range output data for corresponding index will be filled with zeros",
    ),
}
GATHER_ELEMENTS_11: Final[Clauses] = {
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
    "index_out_of_bounds": _WITHIN_AXIS,
}
GATHER_ELEMENTS_6: Final[Clauses] = {
    "data_dtype": (None, "T: any supported type"),
    "index_dtype": (None, "T_IND: int32 or int64"),
    "rank_too_small": (None, "a tensor of a rank >= 1"),
    "rank_mismatch": (None, "The data and indices tensors have the same rank r >= 1"),
    "axis_out_of_range": (None, "Range of values: [-r, r-1] where r = rank(data)"),
    "indices_shape_mismatch": (
        None,
        "The indices tensor has the same shape as the data tensor except for the axis dimension",
    ),
    "index_out_of_bounds": (
        None,
        "All index values are expected to be within bounds [0, s-1], where s is size along axis dimension of the data "
        "tensor",
    ),
}
GATHER_BLOCK_QUANTIZED_1: Final[Clauses] = {
    "data_dtype": (None, "T1 in (tensor(int4), tensor(uint4), tensor(uint8)); here tensor(uint8)"),
    "index_dtype": (None, "Tind in (tensor(int32), tensor(int64))"),
    "scales_dtype": (None, "T2 in (tensor(float), tensor(float16), tensor(bfloat16))"),
    "zero_points_dtype": (None, "The data and zero_points have the same type"),
    "rank_too_small": (None, "data - Tensor of rank r >= 1; here it has rows and blocks, so that r >= 2"),
    "axis_out_of_range": (
        None,
        "For uint8 data, the gather_axis must be 0; here blocks lie along the last axis, as the CPU's kernel has them",
    ),
    "updates_shape_mismatch": (
        None,
        "Input data is quantized block-wise along attribute quantize_axis with block size specified by attribute "
        "block_size; scales and zero_points have an element for each block",
    ),
    "index_out_of_bounds": _WITHIN_AXIS,
}
SCATTERND_11: Final[Clauses] = {
    "data_dtype": (None, "T: constrain input and output types to any tensor type"),
    "index_dtype": (None, "indices - tensor(int64)"),
    "rank_too_small": (None, "data tensor of rank r >= 1, indices tensor of rank q >= 1"),
    "index_depth_out_of_range": (None, "k can be a value at most the rank of data; here it is at least 1"),
    "updates_shape_mismatch": (None, "the shape of updates must equal indices.shape[0:q-1] ++ data.shape[k:r]"),
    "index_out_of_bounds": (
        None,
        "Index values are allowed to be negative, as per the usual convention for counting backwards from the end, but "
        "are expected in the valid range",
    ),
}
SCATTER_ELEMENTS_11: Final[Clauses] = {
    "data_dtype": (None, "Input and output types can be of any tensor type"),
    "index_dtype": (None, "Tensor of int32/int64 indices"),
    "rank_too_small": (None, "Tensor of rank r >= 1"),
    "rank_mismatch": (None, "Tensor of int32/int64 indices, of r >= 1 (same rank as input)"),
    "axis_out_of_range": (None, "Accepted range is [-r, r-1] where r = rank(data)"),
    "indices_shape_mismatch": (
        None,
        "the index-value for dimension != axis is obtained from the index of the entry itself; here it must be one in "
        "data",
    ),
    "updates_shape_mismatch": (None, "Tensor of rank r >=1 (same rank and shape as indices)"),
    "index_out_of_bounds": (
        None,
        "All index values are expected to be within bounds [-s, s-1] along axis of size s. It is an error if any of "
        "the index values are out of bounds",
    ),
}
BACKWARD: Final[Clauses] = {
    "data_dtype": (None, "the gradient is of a float type that the gather takes, in grad_output and in data"),
    "updates_shape_mismatch": (None, "the shape of grad_output must equal that of the gather's output"),
}
"""The rules of gradients, which no specification defines. The gather's own rules are in its dialect."""
EMBEDDING_BAG_OFFSETS_15: Final[Clauses] = {
    "data_dtype": (None, "T: any numeric type; here a float type, since a sum of another would overflow"),
    "index_dtype": (None, "T_IND: int32 or int64"),
    "weights_dtype": (None, "per_sample_weights tensor of the same shape as indices and of type T"),
    "rank_too_small": (None, "emb_table tensor of shape [num_emb, emb_dim1, emb_dim2, ...]"),
    "rank_mismatch": (None, "indices tensor of shape [num_indices]"),
    "updates_shape_mismatch": (None, "per_sample_weights tensor of the same shape as indices and of type T"),
    "offsets_invalid": (
        None,
        "offsets tensor of shape [batch] containing the starting index positions of each bag in indices. Maximum value "
        "of offsets cannot be greater than length of indices",
    ),
    "index_out_of_bounds": (
        None,
        "For each index in indices this operator gathers values from emb_table; here each is in [0, num_emb - 1]",
    ),
}
