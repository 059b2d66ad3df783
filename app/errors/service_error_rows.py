"""Errors that concern the service's own state, or the data that it stores and fetches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from app.errors.error_row import ErrorRow, Example

ServiceCode = Literal[
    "overloaded",
    "not_ready",
    "deadline_exceeded",
    "shard_unavailable",
    "not_implemented",
    "tensor_damaged",
    "import_failed",
    "insufficient_storage",
    "internal",
]

_GATHER: Final = """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]}}'"""
"""A correct request, refused only because of the service's state."""

ROWS: Final[Mapping[ServiceCode, ErrorRow]] = {
    "overloaded": ErrorRow(
        "Overloaded",
        status=503,
        grpc_status="UNAVAILABLE",
        meaning=(
            "The queue or the memory budget is full, or too many requests are in progress; `limit` says which. Nothing "
            "was done."
        ),
        fix="Send the request again after the number of seconds in Retry-After.",
        hints=(
            (
                "Send the request again after {retry_after} s, or have the operator raise {setting} if this keeps "
                "happening."
            ),
            "Send the request again after {retry_after} s.",
        ),
        example=Example(
            _GATHER,
            "1024 requests are in progress, which is the limit",
            members={"limit": "requests", "maximum": 1024},
            about="More requests are in progress than the service has room for.",
        ),
    ),
    "not_ready": ErrorRow(
        "Not ready",
        status=503,
        grpc_status="UNAVAILABLE",
        meaning="The service is starting or stopping.",
        fix="Wait until GET /readyz returns 200.",
        hints=("Send the request again after {retry_after} s, once GET /readyz returns 200.",),
        example=Example(
            _GATHER,
            "the service is still starting and is waiting for: kernels",
            about="The service was started a moment ago.",
        ),
    ),
    "deadline_exceeded": ErrorRow(
        "Deadline exceeded",
        status=503,
        grpc_status="DEADLINE_EXCEEDED",
        meaning="The deadline of the caller or of the service passed before the work was done.",
        fix=(
            "Send the request again after the number of seconds in Retry-After, or allow more time: X-Gathernd-Timeout "
            "is in seconds, the parameter `timeout` of the inference protocol in microseconds."
        ),
        hints=(
            (
                "Send the request again after {retry_after} s, or allow it more time: X-Gathernd-Timeout is in "
                "seconds, `timeout` of the inference protocol in microseconds; GATHERND_DEADLINE is the operator's "
                "limit."
            ),
        ),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' \\
-H 'X-Gathernd-Timeout: 0.001' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]}}'""",
            "the request waited until its deadline passed",
            about="All threads are busy with other requests.",
        ),
    ),
    "shard_unavailable": ErrorRow(
        "Shard unavailable",
        status=503,
        grpc_status="UNAVAILABLE",
        meaning=(
            "The table is split into row ranges on several services, and no replica of a range that the request needs "
            "is responding. `ranges` says which rows are unavailable, `errors` which indices need them. Requests for "
            "other rows succeed. A scatter also gets this error if a range has no primary or too few in-sync replicas, "
            "or if the outcome of the scatter is unknown."
        ),
        fix=(
            "Send the request again after the number of seconds in Retry-After; send a scatter with the same "
            "Idempotency-Key. If the error persists, have an operator check the shards."
        ),
        hints=("Send the request again after {retry_after} s, or leave out the indices that need these rows.",),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"tensor": "items"},
  "indices": {"dtype": "int64", "shape": [1, 1], "values": [7]}}'""",
            "no replica of rows 5 to 9 of 'items@1' is responding",
            members={
                "errors": [{"pointer": "/indices/values/0", "position": [0, 0], "value": 7}],
                "ranges": [{"tensor": "items@1", "start": 5, "stop": 10}],
            },
            about=(
                "The service is started with `--cluster`. The map has `items` in two ranges of five rows, and the "
                "services with the second range are down."
            ),
        ),
    ),
    "not_implemented": ErrorRow(
        "Not implemented",
        status=501,
        grpc_status="UNIMPLEMENTED",
        meaning=(
            "The service does not implement this part of the inference protocol: shared memory, classification of an "
            "output, or changes of log and trace settings. In a cluster, this error also means that the request needs "
            "the whole table on one machine (for example, a scatter with If-Match to several ranges), or that it "
            "selects rows by position in a table with keys, whose rows a cluster places by key."
        ),
        fix="Send the tensors in the request. An operator sets the log level when the service starts.",
        hints=("Leave out this part of the protocol, and send the tensors in the request itself.",),
        example=Example(
            "curl -s http://127.0.0.1:8080/v2/systemsharedmemory/region/x/register -X POST",
            "shared memory is not supported; send the tensors in the request",
        ),
    ),
    "tensor_damaged": ErrorRow(
        "Tensor damaged",
        status=500,
        grpc_status="DATA_LOSS",
        meaning=(
            "The file of this resident tensor no longer holds the data that was acknowledged. Other tensors are "
            "still served."
        ),
        fix="Upload the tensor again, or restore the store from a backup.",
        hints=("Upload the tensor again with PUT, or have the operator restore the store from a backup.",),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"tensor": "items"},
  "indices": {"dtype": "int64", "shape": [1, 1], "values": [0]}}'""",
            "the data of 'items' is damaged: its checksums or its log do not match",
            about="Another program has written into the file of the tensor `items`.",
        ),
    ),
    "import_failed": ErrorRow(
        "Import failed",
        status=502,
        grpc_status="UNAVAILABLE",
        meaning=(
            "The service could not import the file at the URL. Possible reasons: The file's server did not respond, "
            "refused the request, or closed the connection. The host's address is not public. The file changed during "
            "the import, does not match its checksum, or is not a valid npy or safetensors file. Nothing was changed."
        ),
        fix=(
            "Check from the service's machine that the URL can be read, and send the request again; or download the "
            "file and upload it with PUT /tensors/{name}."
        ),
        hints=("Check that the service can read the URL, and send the request again, or upload the file with PUT.",),
        example=Example(
            """curl -s http://127.0.0.1:8080/tensors/items/import -H 'Content-Type: application/json' -d '{
  "url": "file:///data/tables/items.npy"}'""",
            "file:///data/tables/items.npy could not be imported: the file could not be opened: No such file or "
            "directory",
            members={"errors": [{"pointer": "/url"}]},
            about="The service allows imports from `file:///data/tables/`, and the file does not exist.",
        ),
    ),
    "insufficient_storage": ErrorRow(
        "Insufficient storage",
        status=507,
        grpc_status="RESOURCE_EXHAUSTED",
        meaning=(
            "The disk is full, or the store has reached its quota of bytes, tensors or remembered Idempotency-Keys. "
            "The tensor's existing data is unchanged."
        ),
        fix="Delete tensors, or have the operator free disk space or raise the quota.",
        hints=(
            "Delete tensors that are not needed, or have the operator raise {setting}.",
            "Delete tensors that are not needed, or have the operator free disk space.",
        ),
        example=Example(
            "printf abc | curl -s 'http://127.0.0.1:8080/tensors/letters?dtype=uint8&shape=3' -X PUT -H "
            "'Content-Type: application/octet-stream' --data-binary @-",
            "this would exceed the store's quota of 1 tensors",
            members={"limit": "store_tensors", "maximum": 1},
            about="The service has the tensor `items`, and `GATHERND_MAX_TENSORS` is 1.",
        ),
    ),
    "internal": ErrorRow(
        "Internal error",
        status=500,
        grpc_status="INTERNAL",
        meaning="The service failed. This is a bug in the service, not a problem with the request.",
        fix="Report it with the request_id; the service's log has it too.",
        hints=("Report it to the operator with the request_id; the service's log has it too.",),
        example=Example(
            _GATHER,
            "the service failed; its log has the request_id",
            about="This is a bug in the service; no known request causes it.",
        ),
    ),
}
