"""The closed catalogue of errors, and the one exception that carries them.

Every refusal anywhere in the service is a `GatherError` whose `code` is a key of `CATALOGUE`. Nothing here knows
HTTP: `app.api.error_responses` maps each code to its status and writes the body.

    GatherError
      code      which entry of the catalogue
      detail    one sentence about this request
      rule      the operator's rule that was broken, with the clause of the dialect's text, or None
      places    where in the request, at most ten
      total     how many places there are in all
      facts     further members of the body, such as `limit` and `maximum`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

Code = Literal[
    "malformed_request",
    "unauthorized",
    "forbidden",
    "not_found",
    "method_not_allowed",
    "tensor_not_found",
    "model_not_found",
    "request_timeout",
    "header_too_large",
    "precondition_failed",
    "range_not_satisfiable",
    "payload_too_large",
    "unsupported_media_type",
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
    "device_unavailable",
    "overloaded",
    "not_ready",
    "deadline_exceeded",
    "not_implemented",
    "tensor_damaged",
    "insufficient_storage",
    "internal",
]
CODES: Final[tuple[Code, ...]] = get_args(Code)
REPORTED_PLACES: Final = 10


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of an operator: `clause` is the number the dialect's text gives it, None where it numbers nothing."""

    dialect: str
    clause: str | None
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """One spot in the request that is wrong; members that do not apply are None, `allowed` too on an axis of size 0."""

    pointer: str
    position: tuple[int, ...] | None = None
    value: int | float | str | None = None
    axis: int | None = None
    size: int | None = None
    allowed: tuple[int, int] | None = None


class GatherError(Exception):
    """A request refused; `code` is from the catalogue."""

    def __init__(
        self,
        code: Code,
        detail: str,
        *,
        pointer: str | None = None,
        places: Sequence[Place] = (),
        total: int | None = None,
        rule: Rule | None = None,
        facts: Mapping[str, int | str] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code: Code = code
        self.detail = detail
        self.places: tuple[Place, ...] = tuple(places) if pointer is None else (Place(pointer),)
        self.total = len(self.places) if total is None else total
        self.rule = rule
        self.facts: Mapping[str, int | str] = facts or {}
        self.retry_after = retry_after


def invalid_field(pointer: str, detail: str) -> GatherError:
    """The error for a field that is missing, unknown, or has another value than it may."""
    return GatherError("invalid_field", detail, pointer=pointer)


@dataclass(frozen=True, slots=True)
class Entry:
    """A page of the catalogue: `title` heads the error body, the rest is the page at `/errors/{code}`."""

    title: str
    meaning: str
    example: str
    mend: str


CATALOGUE: Final[Mapping[Code, Entry]] = {
    "malformed_request": Entry(
        "Malformed request",
        "The body could not be read as what its Content-Type says: not JSON (bare NaN and duplicate keys count), "
        "broken framing, or a binary part that ends early.",
        '{"data": {"dtype": "float32", "shape": [1], "values": [NaN]}, …}',
        'Send valid JSON in UTF-8. Write non-finite numbers as the strings "NaN", "Infinity" and "-Infinity", and name '
        "each key once.",
    ),
    "unauthorized": Entry(
        "Unauthorized",
        "The service asks for a key and the request carries none, or one that is not known.",
        "A request without an Authorization header to a service that has GATHERND_API_KEYS_FILE set.",
        "Send 'Authorization: Bearer KEY'. An operator makes a key with 'gathernd keys add'.",
    ),
    "forbidden": Entry(
        "Forbidden",
        "The request is understood and refused: the key lacks the scope, the Host or Origin header is foreign to a "
        "service on a loopback address, or tensors may not be changed without keys off loopback.",
        "A page of another site posts to a service on 127.0.0.1: its Origin header gives it away.",
        "Use a key with the needed scope; call the service by its own name, or add the name to GATHERND_ALLOWED_HOSTS; "
        "set GATHERND_API_KEYS_FILE to change tensors from other hosts.",
    ),
    "not_found": Entry(
        "Not found",
        "No route has this path.",
        "POST /gather_nd",
        "See /docs for the routes. The operators are POST /gathernd, POST /gather and POST /gather_elements.",
    ),
    "method_not_allowed": Entry(
        "Method not allowed",
        "The route exists and does not take this method.",
        "GET /gathernd",
        "Use one of the methods in the Allow header of the answer.",
    ),
    "tensor_not_found": Entry(
        "Tensor not found",
        "No resident tensor has this name. Names are case-sensitive.",
        '{"data": {"tensor": "itmes"}, …}',
        "List the names with GET /tensors, or upload the tensor with PUT /tensors/{name}.",
    ),
    "model_not_found": Entry(
        "Model not found",
        "No model has this name or this version: there is one for each operator, such as 'gathernd', and one for each "
        "resident tensor, each in version 1 only.",
        "POST /v2/models/gathernd/versions/2/infer",
        "List the models with POST /v2/repository/index.",
    ),
    "request_timeout": Entry(
        "Request timeout",
        "The request did not arrive in time: the sender was too slow or stopped. A client that does not read its "
        "answer is cut off under the same name.",
        "A body announced with Content-Length: 1000000 of which one byte a minute arrives.",
        "Send faster, send less, or have the operator raise the limit.",
    ),
    "header_too_large": Entry(
        "Header too large",
        "The request line and header fields are too long or too many.",
        "A cookie of 100 KiB.",
        "Send fewer and shorter header fields.",
    ),
    "precondition_failed": Entry(
        "Precondition failed",
        "If-Match or If-None-Match does not hold for the tensor as it is now.",
        "PUT /tensors/items with If-None-Match: * when the tensor exists.",
        "Read the tensor's current ETag, decide again, and send that one.",
    ),
    "range_not_satisfiable": Entry(
        "Range not satisfiable",
        "The rows asked for are not rows of the tensor: 0 <= a <= b <= n must hold.",
        "GET /tensors/items/content?rows=5:2",
        "Ask for rows=a:b within the tensor's first dimension.",
    ),
    "payload_too_large": Entry(
        "Payload too large",
        "The body, as sent or as inflated, is over the limit, or could never fit the memory budget.",
        "A JSON body of 100 MiB where GATHERND_MAX_JSON_BYTES is 64 MiB.",
        "Send less, use a binary format, upload the data once as a resident tensor, or have the operator raise the "
        "limit.",
    ),
    "unsupported_media_type": Entry(
        "Unsupported media type",
        "The route does not read this Content-Type or Content-Encoding.",
        "curl -d without a header sends application/x-www-form-urlencoded.",
        "With curl add -H 'Content-Type: application/json'. Encodings are gzip and deflate.",
    ),
    "invalid_field": Entry(
        "Invalid field",
        "A field is missing, unknown, given twice, of the wrong JSON type or not one of the values it may have.",
        '{"data": {…}, "indices": {…}, "batchdims": 1}',
        "Compare the request with the schema at /openapi.json; the pointer names the field.",
    ),
    "unsupported_dtype": Entry(
        "Unsupported dtype",
        "The element type is not known, or the dialect does not allow it for data or for indices, or the format cannot "
        "carry it.",
        'indices of dtype int32 under "onnx-13", which takes int64 only.',
        "Convert the tensor, choose another dialect (openvino-8 takes indices of every integer type), or another "
        "format (JSON carries every type).",
    ),
    "value_not_representable": Entry(
        "Value not representable",
        "A value cannot be held by its dtype: out of range, not integral, not true or false, or a string with a lone "
        "surrogate. Values are never wrapped, clipped or truncated; floats are rounded once, half to even.",
        '{"dtype": "uint8", "shape": [1], "values": [300]}',
        "Correct the value or choose a wider dtype; the pointer names the value.",
    ),
    "element_count_mismatch": Entry(
        "Element count mismatch",
        "The number of values or bytes is not what shape and dtype ask for, or the lists nest otherwise than shape "
        "says. Ragged lists are refused even where the total would fit.",
        '{"dtype": "int32", "shape": [2, 2], "values": [1, 2, 3]}',
        "Send exactly as many values as the product of the shape, flat in row-major order or nested as shape says.",
    ),
    "rank_too_small": Entry(
        "Rank too small",
        "GatherND needs data and indices of rank 1 or more; Gather and GatherElements need data of rank 1 or more.",
        '{"data": {"dtype": "float32", "shape": [], "values": [1]}, …}',
        "Add a dimension: shape [1] instead of [].",
    ),
    "rank_mismatch": Entry(
        "Rank mismatch",
        "GatherElements needs indices of the rank of data: each entry of indices picks the item at its own place, but "
        "for the axis.",
        "data of shape [2, 3], indices of shape [2]",
        "Give indices as many dimensions as data has; for whole slices use POST /gather.",
    ),
    "batch_dims_out_of_range": Entry(
        "batch_dims out of range",
        "batch_dims must be at least 0 and less than both ranks; the dialect onnx-11 has none, so it must be 0 there.",
        "data of rank 2, indices of rank 2, batch_dims 2",
        "Use a smaller batch_dims, or another dialect than onnx-11.",
    ),
    "batch_shape_mismatch": Entry(
        "Batch shape mismatch",
        "The first batch_dims dimensions of data and of indices must be equal, one by one. Nothing is broadcast.",
        "data of shape [2, 3], indices of shape [4, 1], batch_dims 1",
        "Give both tensors the same leading dimensions.",
    ),
    "index_depth_out_of_range": Entry(
        "Index depth out of range",
        "The last dimension of indices is the length of one index tuple: at least 1 and at most rank(data) - "
        "batch_dims.",
        "data of shape [2, 2], indices of shape [1, 3]",
        "Make the last dimension of indices the number of data axes that you index.",
    ),
    "axis_out_of_range": Entry(
        "Axis out of range",
        "axis must be within [-r, r-1] where r is the rank of data.",
        "data of rank 2, axis 2",
        "Use an axis that data has; negative ones count from the back.",
    ),
    "indices_shape_mismatch": Entry(
        "Indices shape mismatch",
        "GatherElements needs indices that are no larger than data on every axis but `axis`. Nothing is broadcast.",
        "data of shape [2, 3], indices of shape [4, 5], axis 1",
        "Cut indices to the size of data on every other axis, or choose another axis.",
    ),
    "index_out_of_bounds": Entry(
        "Index out of bounds",
        "An index is outside its own axis of data. Every component is checked against its axis, never the flat offset. "
        "All bad components are counted in `total`, the first ten in row-major order are listed.",
        "data of shape [2, 2], indices [[0, 0], [5, 1]]",
        "Correct the index; `allowed` gives the range, null on an axis of size 0, where no index is valid.",
    ),
    "output_too_large": Entry(
        "Output too large",
        "The answer would have more bytes than the limit. This is decided from the shapes, before anything is "
        "allocated.",
        "data of shape [2, 1000000], indices of shape [1000000, 1]",
        "Ask for fewer slices a request, or have the operator raise GATHERND_MAX_OUTPUT_BYTES.",
    ),
    "limit_exceeded": Entry(
        "Limit exceeded",
        "A rank, a dimension, an element count, a byte size or the bytes of a string are over the service's limit, "
        "which `limit` and `maximum` name.",
        "data of rank 40",
        "Send smaller tensors, or have the operator raise the limit.",
    ),
    "updates_shape_mismatch": Entry(
        "Updates shape mismatch",
        "A scatter needs updates of shape indices.shape[:-1] + data.shape[k:], and of the tensor's dtype.",
        "A tensor of shape [8, 4], indices of shape [2, 1], updates of shape [2, 3]",
        "Send one slice of the tensor for each index tuple.",
    ),
    "device_unavailable": Entry(
        "Device unavailable",
        "The request asks for a GPU where there is none, or with a type that it cannot hold.",
        '{"device": "gpu", …} to a service on a machine without a GPU',
        "Use device auto, which takes the fastest device that can do it.",
    ),
    "overloaded": Entry(
        "Overloaded",
        "The queue or the memory budget is full at this moment, or as many requests are under way as may be; `limit` "
        "says which. Nothing was done.",
        "More requests at once than the service has room for.",
        "Send the request again after the seconds that Retry-After names.",
    ),
    "not_ready": Entry(
        "Not ready",
        "The service is starting, or is being stopped.",
        "A request in the first second of the process, before the kernels are compiled.",
        "Wait until GET /readyz answers 200.",
    ),
    "deadline_exceeded": Entry(
        "Deadline exceeded",
        "The work was not done before the deadline of the caller or of the service.",
        "A request that waited in the queue longer than its timeout.",
        "Send it again after the seconds that Retry-After names, or allow more time: X-Gathernd-Timeout has seconds, "
        "the parameter `timeout` of the inference protocol microseconds.",
    ),
    "not_implemented": Entry(
        "Not implemented",
        "The inference protocol has this and the service does not offer it: shared memory, classification of an "
        "output, and changing log and trace settings.",
        "POST /v2/systemsharedmemory/region/x/register",
        "Send the tensors in the request; an operator sets the log level when the service starts.",
    ),
    "tensor_damaged": Entry(
        "Tensor damaged",
        "The file of this resident tensor no longer holds what was acknowledged. Other tensors are served.",
        "Another program wrote into the store's folder.",
        "Upload the tensor again, or restore the folder from a backup.",
    ),
    "insufficient_storage": Entry(
        "Insufficient storage",
        "The disk is full, or the quota of the store is reached: bytes, tensors, or Idempotency-Keys to remember. The "
        "old content of the tensor is as it was.",
        "An upload of 10 GiB to a disk with 5 GiB left.",
        "Delete tensors, or have the operator make room or raise the quota.",
    ),
    "internal": Entry(
        "Internal error",
        "The service failed. This is a defect of ours, not of the request.",
        "None is known.",
        "Report it with the request_id, which the service's log has too.",
    ),
}
