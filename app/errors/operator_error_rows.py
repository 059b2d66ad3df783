"""Errors in a request itself: its fields, and the rules and limits of the operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from app.errors.error_row import ErrorRow, Example

OperatorCode = Literal[
    "invalid_field",
    "unsupported_dtype",
    "value_not_representable",
    "element_count_mismatch",
    "rank_too_small",
    "rank_mismatch",
    "batch_dims_out_of_range",
    "batch_shape_mismatch",
    "index_depth_out_of_range",
    "axis_out_of_range",
    "indices_shape_mismatch",
    "index_out_of_bounds",
    "output_too_large",
    "limit_exceeded",
    "updates_shape_mismatch",
    "offsets_invalid",
    "feature_mismatch",
    "device_unavailable",
]

ROWS: Final[Mapping[OperatorCode, ErrorRow]] = {
    "invalid_field": ErrorRow(
        "Invalid field",
        meaning="A field is missing, unknown, repeated, of the wrong JSON type, or has a value that is not allowed.",
        fix="Compare the request with the schema at /openapi.json; the pointer says which field.",
        hints=(
            "Correct {pointer} to match the schema at /openapi.json.",
            "Correct the request to match the schema at /openapi.json.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]},
  "batch_dims": "1"}'""",
            "batch_dims must be an integer",
            members={"errors": [{"pointer": "/batch_dims"}]},
            hint="Write 1 without quotes at /batch_dims.",
        ),
    ),
    "unsupported_dtype": ErrorRow(
        "Unsupported dtype",
        meaning=(
            "The element type is unknown, the dialect does not allow it for data or indices, or the format cannot "
            "carry it."
        ),
        fix=(
            "Convert the tensor, or choose another dialect (openvino-8 accepts indices of every integer type) or "
            "another format (JSON carries every type)."
        ),
        hints=(
            "Convert {pointer} to a supported type.",
            "Convert the tensor to a supported type, or send it as JSON, which carries every type.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int32", "shape": [2, 2], "values": [0, 0, 1, 1]}}'""",
            "onnx-13 does not accept indices of type int32; it accepts int64",
            members={
                "rule": {"dialect": "onnx-13", "clause": None, "text": "indices - tensor(int64)"},
                "errors": [{"pointer": "/indices/dtype"}],
            },
            hint="Convert indices to int64, which onnx-13 accepts.",
        ),
    ),
    "value_not_representable": ErrorRow(
        "Value not representable",
        meaning=(
            "The dtype cannot hold a value: it is out of range, not integral, not a boolean, or a string with a lone "
            "surrogate. Values are never wrapped, clipped or truncated; floats are rounded once, half to even."
        ),
        fix="Correct the value or choose a wider dtype; the pointer says which value.",
        hints=(
            "Correct the value at {pointer}, or choose a wider dtype.",
            "Correct the value, or choose a wider dtype.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "uint8", "shape": [2], "values": [7, 300]},
  "indices": {"dtype": "int64", "shape": [1, 1], "values": [0]}}'""",
            "data[1] is 300, which uint8 cannot hold",
            members={"errors": [{"pointer": "/data/values/1", "position": [1], "value": 300}]},
            hint="Write a number from 0 to 255 at /data/values/1, or use dtype 'uint16'.",
        ),
    ),
    "element_count_mismatch": ErrorRow(
        "Element count mismatch",
        meaning=(
            "The number of values or bytes does not match shape and dtype, or the nesting of the lists does not match "
            "shape. Ragged lists are refused even if their total matches."
        ),
        fix=(
            "Send exactly as many values as the product of the shape, flat in row-major order or nested like the shape."
        ),
        hints=(
            "Send as many values or bytes at {pointer} as the shape requires.",
            "Send as many values or bytes as the shape requires.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [[0, 1], [2]]},
  "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]}}'""",
            "data: the values are neither a flat list of 4 items nor lists nested like the shape",
            members={"errors": [{"pointer": "/data/values"}]},
            hint="Send 2 values in the list at /data/values/1, as shape [2, 2] requires; it has 1.",
        ),
    ),
    "rank_too_small": ErrorRow(
        "Rank too small",
        meaning=(
            "GatherND needs data and indices of rank 1 or more; Gather and GatherElements need data of rank 1 or more."
        ),
        fix="Add a dimension: shape [1] instead of [].",
        hints=(
            "Give {pointer} a dimension: [1] in place of [].",
            "Give the tensor a dimension: shape [1] in place of [].",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [], "values": [1]},
  "indices": {"dtype": "int64", "shape": [1], "values": [0]}}'""",
            "data has rank 0, but needs rank 1 or more",
            members={
                "rule": {"dialect": "onnx-13", "clause": "1", "text": "r >= 1 and q >= 1 are to be honored"},
                "errors": [{"pointer": "/data/shape"}],
            },
        ),
    ),
    "rank_mismatch": ErrorRow(
        "Rank mismatch",
        meaning=(
            "GatherElements and ScatterElements need indices of the same rank as data: each index replaces the `axis` "
            "coordinate of its own position. A pooled feature of a lookup needs indices of rank 1."
        ),
        fix="Give indices as many dimensions as data has; for whole slices use POST /gather or POST /scatternd.",
        hints=(
            "Give indices {high} dimensions, as many as data has, or use POST /gather for whole slices.",
            "Give indices as many dimensions as data has, or use POST /gather for whole slices.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gather_elements -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [2], "values": [0, 1]}}'""",
            "indices has rank 1 and data has rank 2; the ranks must be equal",
            members={
                "rule": {
                    "dialect": "onnx-13",
                    "clause": None,
                    "text": "Tensor of int32/int64 indices, with the same rank r as the input",
                },
                "errors": [{"pointer": "/indices/shape", "value": 1, "allowed": [2, 2]}],
            },
        ),
    ),
    "batch_dims_out_of_range": ErrorRow(
        "batch_dims out of range",
        meaning=(
            "batch_dims must be at least 0 and less than both ranks. The dialect onnx-11 has no batch_dims, so it must "
            "be 0 there. For Gather-8, it must not exceed axis. It may equal the smaller rank, and a negative "
            "value counts back from the rank of indices."
        ),
        fix="Use a smaller batch_dims, or a dialect other than onnx-11.",
        hints=(
            "Use a batch_dims from {low} to {high}.",
            "Use a batch_dims that is less than both ranks.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]},
  "batch_dims": 2}'""",
            "batch_dims = 2 is outside [0, 1], as data has rank 2 and indices has rank 2",
            members={
                "rule": {"dialect": "onnx-13", "clause": "3", "text": "b < min(q, r) is to be honored"},
                "errors": [{"pointer": "/batch_dims", "value": 2, "allowed": [0, 1]}],
            },
        ),
    ),
    "batch_shape_mismatch": ErrorRow(
        "Batch shape mismatch",
        meaning="The first batch_dims dimensions of data and indices must be equal. They are not broadcast.",
        fix="Give both tensors the same leading dimensions.",
        hints=(
            "Set dimension {axis} of indices to {size}, as in data.",
            "Give data and indices the same leading dimensions.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [3, 1], "values": [0, 1, 0]},
  "batch_dims": 1}'""",
            "batch axis 0 has size 2 in data and 3 in indices",
            members={
                "rule": {
                    "dialect": "onnx-13",
                    "clause": "2",
                    "text": (
                        "The first `b` dimensions of the shape of `indices` tensor and `data` tensor must be equal"
                    ),
                },
                "errors": [{"pointer": "/indices/shape", "value": 3, "axis": 0, "size": 2, "allowed": None}],
            },
        ),
    ),
    "index_depth_out_of_range": ErrorRow(
        "Index depth out of range",
        meaning=(
            "The last dimension of indices is the length of an index tuple. It must be at least 1 and at most "
            "rank(data) - batch_dims."
        ),
        fix="Set the last dimension of indices to the number of data axes that you index.",
        hints=(
            "Set the last dimension of indices to {low}.",
            "Set the last dimension of indices to the number of data axes that you index.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [1, 3], "values": [0, 1, 0]}}'""",
            "index tuples have length 3, outside [1, 2]",
            members={
                "rule": {
                    "dialect": "onnx-13",
                    "clause": "4",
                    "text": (
                        "The `indices_shape[-1]` should have a value between 1 (inclusive) and rank `r-b` (inclusive)"
                    ),
                },
                "errors": [{"pointer": "/indices/shape", "value": 3, "allowed": [1, 2]}],
            },
        ),
    ),
    "axis_out_of_range": ErrorRow(
        "Axis out of range",
        meaning="axis must be in [-r, r-1], where r is the rank of data.",
        fix="Use an axis that data has; negative axes count from the end.",
        hints=(
            "Use an axis from {low} to {high}.",
            "Use an axis that data has.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gather -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [1], "values": [1]},
  "axis": 2}'""",
            "axis = 2 is outside [-2, 1], as data has rank 2",
            members={
                "rule": {
                    "dialect": "onnx-13",
                    "clause": None,
                    "text": "Accepted range is [-r, r-1] where r = rank(data)",
                },
                "errors": [{"pointer": "/axis", "value": 2, "allowed": [-2, 1]}],
            },
        ),
    ),
    "indices_shape_mismatch": ErrorRow(
        "Indices shape mismatch",
        meaning=(
            "GatherElements and ScatterElements need indices that are no larger than data on every axis except `axis`. "
            "They are not broadcast."
        ),
        fix="Make indices no larger than data on every axis except `axis`, or choose a different `axis`.",
        hints=(
            "Reduce dimension {axis} of indices to {size} or less, its size in data, or choose another axis.",
            "Cut indices to the size of data on every axis except `axis`.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gather_elements -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [3, 1], "values": [0, 0, 1]},
  "axis": 1}'""",
            "axis 0 has size 3 in indices and only 2 in data",
            members={
                "rule": {
                    "dialect": "onnx-13",
                    "clause": None,
                    "text": (
                        "out[i][j][k] = input[index[i][j][k]][j][k] if axis = 0, and so on; here each place in indices "
                        "must be one in data, but for the axis"
                    ),
                },
                "errors": [{"pointer": "/indices/shape", "value": 3, "axis": 0, "size": 2, "allowed": [0, 2]}],
            },
        ),
    ),
    "index_out_of_bounds": ErrorRow(
        "Index out of bounds",
        grpc_status="OUT_OF_RANGE",
        meaning=(
            "An index is outside the axis of data that it addresses. Each component is checked against its own axis. "
            "`total` counts all bad components; `errors` lists the first ten in row-major order."
        ),
        fix=(
            "Correct the index. `allowed` gives the valid range; it is null on an axis of size 0, where no index is "
            "valid. A gather can also clip, wrap or fill indices that are out of bounds: set `out_of_bounds`."
        ),
        hints=(
            (
                "Use an index from {low} to {high} at {pointer}, since axis {axis} of data has size {size}; in a "
                "gather, you can also set 'out_of_bounds'."
            ),
            "Send no index for axis {axis}: it has size {size}, so no index is valid.",
            "Use indices within the size of each axis of data; in a gather, you can also set 'out_of_bounds'.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 5, 1]}}'""",
            "indices[1,0] = 5 is outside [-2, 1] on data axis 0 (size 2)",
            members={
                "rule": {
                    "dialect": "onnx-13",
                    "clause": "5",
                    "text": "-data_shape[i] <= indices[...,i] <= data_shape[i] - 1",
                },
                "errors": [
                    {
                        "pointer": "/indices/values/2",
                        "position": [1, 0],
                        "value": 5,
                        "axis": 0,
                        "size": 2,
                        "allowed": [-2, 1],
                    }
                ],
            },
        ),
    ),
    "output_too_large": ErrorRow(
        "Output too large",
        grpc_status="RESOURCE_EXHAUSTED",
        meaning=(
            "The output would exceed the byte limit. The service decides this from the shapes, before it allocates "
            "anything."
        ),
        fix="Gather fewer slices per request, or have the operator raise GATHERND_MAX_OUTPUT_BYTES.",
        hints=(
            (
                "Gather fewer slices per request, so that the output has at most {maximum} bytes, or have the operator "
                "raise {setting}."
            ),
            "Gather fewer slices per request.",
        ),
        example=Example(
            """printf '{"data": {"dtype": "int8", "shape": [1, 524288], "base64": "%s"},
"indices": {"dtype": "int64", "shape": [2049, 1], "base64": "%s"}}' \\
"$(head -c 524288 /dev/zero | base64 -w 0)" "$(head -c 16392 /dev/zero | base64 -w 0)" |
curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' --data-binary @-""",
            "the output of shape [2049, 524288] would have 1074266112 bytes; the limit is 1073741824",
            members={"errors": [{"pointer": "/indices/shape"}], "limit": "output_bytes", "maximum": 1073741824},
        ),
    ),
    "limit_exceeded": ErrorRow(
        "Limit exceeded",
        grpc_status="RESOURCE_EXHAUSTED",
        meaning=(
            "A rank, a dimension, an element count, a byte size or the length of a string exceeds the service's limit; "
            "`limit` says which limit, and `maximum` is its value."
        ),
        fix="Send smaller tensors, or have the operator raise the limit.",
        hints=(
            "Send a smaller tensor: the limit {limit} is {maximum}; the operator can raise it with {setting}.",
            "Send a smaller request: the limit {limit} is {maximum} and cannot be raised.",
            "Send a smaller request.",
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "int8", "values": [7],
    "shape": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]},
  "indices": {"dtype": "int64", "shape": [1, 1], "values": [0]}}'""",
            "data has rank 33; the limit is 32",
            members={"errors": [{"pointer": "/data/shape"}], "limit": "rank", "maximum": 32},
        ),
    ),
    "updates_shape_mismatch": ErrorRow(
        "Updates shape mismatch",
        meaning=(
            "The updates of a scatter must have the tensor's dtype and the shape indices.shape[:-1] + data.shape[k:], "
            "where k is indices.shape[-1]. Those of ScatterElements must have the shape of indices. grad_output must "
            "have the shape of the gather's output. A lookup needs one weight for each index."
        ),
        fix="Send one slice of the tensor for each index tuple; for ScatterElements, one item for each index.",
        hints=("Send updates of shape indices.shape[:-1] + tensor.shape[k:], one slice for each index tuple.",),
        example=Example(
            """curl -s http://127.0.0.1:8080/tensors/items/scatter -H 'Content-Type: application/json' -d '{
  "indices": {"dtype": "int64", "shape": [1, 1], "values": [0]},
  "updates": {"dtype": "float32", "shape": [1, 3], "values": [7, 8, 9]}}'""",
            "updates has shape [1, 3], but must have [1, 2]",
            members={
                "rule": {
                    "dialect": "onnx-18",
                    "clause": None,
                    "text": "the shape of updates must equal indices.shape[0:q-1] ++ data.shape[k:r]",
                },
                "errors": [{"pointer": "/updates/shape"}],
            },
            hint="Send updates of shape [1, 2].",
            about="The service has the resident tensor `items`, float32 of shape [3, 2].",
        ),
    ),
    "offsets_invalid": ErrorRow(
        "Offsets invalid",
        meaning=(
            "The offsets of a pooled feature say where each bag begins. They must have one dimension, begin with 0, "
            "never decrease, and never exceed the number of indices. The last bag ends with the last index."
        ),
        fix="For each bag, send the number of indices before it: 0, 2, 2 for bags of 2, 0 and 3 indices.",
        hints=("Send offsets that begin with 0, never decrease, and never exceed the number of indices.",),
        example=Example(
            """curl -s http://127.0.0.1:8080/lookup -H 'Content-Type: application/json' -d '{
  "features": [{"tensor": "items", "indices": {"dtype": "int64", "shape": [3], "values": [2, 0, 1]},
    "offsets": {"dtype": "int64", "shape": [2], "values": [0, 4]}, "pooling": "sum"}]}'""",
            (
                "offsets[1] = 4, but bag 1 must begin at or after the start of the bag before it, and no later than "
                "the end of the 3 indices"
            ),
            members={
                "rule": {
                    "dialect": "openvino-15",
                    "clause": None,
                    "text": (
                        "offsets tensor of shape [batch] containing the starting index positions of each bag in "
                        "indices. Maximum value of offsets cannot be greater than length of indices"
                    ),
                },
                "errors": [{"pointer": "/features/0/offsets/values/1", "position": [1], "value": 4, "allowed": [0, 3]}],
            },
            hint=(
                "Send an offset from 0 to 3 at /features/0/offsets/values/1, since bag 1 must begin at or after the "
                "start of the bag before it, and no later than the end of the 3 indices."
            ),
            about="The service has the resident tensor `items`, float32 of shape [3, 2].",
        ),
    ),
    "feature_mismatch": ErrorRow(
        "Feature mismatch",
        meaning=(
            "The outputs of a lookup's features are joined on axis 1 unless `concat` is false. Outputs that are joined "
            "must have the same type, the same number of rows, and the same sizes after axis 1."
        ),
        fix="Set `concat` to false, or give all features the same type and number of indices or bags.",
        hints=(
            (
                "Send 'concat': false to get one output for each feature, or give all features the same type and "
                "number of rows."
            ),
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/lookup -H 'Content-Type: application/json' -d '{
  "features": [{"tensor": "items", "indices": {"dtype": "int64", "shape": [3], "values": [2, 0, 1]},
    "offsets": {"dtype": "int64", "shape": [2], "values": [0, 2]}, "pooling": "sum"},
    {"tensor": "items", "indices": {"dtype": "int64", "shape": [1], "values": [0]}}]}'""",
            (
                "the output of the tensor 'items' has 1 rows, but the first output has 2, so they cannot be joined on "
                "axis 1"
            ),
            members={"errors": [{"pointer": "/features/1"}]},
            about="The service has the resident tensor `items`, float32 of shape [3, 2].",
        ),
    ),
    "device_unavailable": ErrorRow(
        "Device unavailable",
        grpc_status="FAILED_PRECONDITION",
        meaning="The request asks for a GPU, but the service has none, or the GPU does not support the type.",
        fix="Use device auto: it picks the fastest device that can run the request.",
        hints=("Write 'auto' in place of 'gpu' for the device: it picks the fastest device that can run the request.",),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]},
  "device": "gpu"}'""",
            "this service uses no GPU (GATHERND_DEVICE=cpu); use device auto or cpu",
            members={"errors": [{"pointer": "/device"}]},
            about="The service has `GATHERND_DEVICE=cpu`, or runs on a machine without a GPU.",
        ),
    ),
}
