"""The catalogue of errors: what each code means, and how to mend a request that was refused with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from app.errors import Code, GatherError
from app.near_name import shorten


@dataclass(frozen=True, slots=True)
class Entry:
    """A page of the catalogue: `title` heads the error body, `meaning` and `mend` are on the page of the code.

    `hints` are sentences on how to mend one request, for errors that bring none of their own: the first whose facts,
    in braces, the error has (see `hint_of`). The last needs none.
    """

    title: str
    meaning: str
    mend: str
    hints: tuple[str, ...]


CATALOGUE: Final[Mapping[Code, Entry]] = {
    "malformed_request": Entry(
        "Malformed request",
        "The body could not be read as what its Content-Type says: not JSON (bare NaN and duplicate keys count), "
        "broken framing, or a binary part that ends early.",
        'Send valid JSON in UTF-8. Write non-finite numbers as the strings "NaN", "Infinity" and "-Infinity", and name '
        "each key once.",
        ("Send one JSON object in UTF-8, or the bytes that the Content-Type names, whole.",),
    ),
    "unauthorized": Entry(
        "Unauthorized",
        "The service asks for a key and the request carries none, or one that is not known.",
        "Send 'Authorization: Bearer KEY'. An operator makes a key with 'gathernd keys add'.",
        (
            "Send 'Authorization: Bearer KEY' with a key of this service, which 'gathernd keys add' makes; the Python "
            "client and the command take it from the environment variable GATHERND_API_KEY.",
        ),
    ),
    "forbidden": Entry(
        "Forbidden",
        "The request is understood and refused: the key lacks the scope, the Host or Origin header is foreign to a "
        "service on a loopback address or with GATHERND_ALLOWED_HOSTS, tensors may not be changed without keys off "
        "loopback, or an import is of a URL that GATHERND_IMPORT_FROM does not allow.",
        "Use a key with the needed scope; call the service by its own name, or add the name to GATHERND_ALLOWED_HOSTS; "
        "set GATHERND_API_KEYS_FILE to change tensors from other hosts; add a prefix of the URL to "
        "GATHERND_IMPORT_FROM.",
        ("Use a key with the needed scope, and call the service by a name that it has.",),
    ),
    "not_found": Entry(
        "Not found",
        "No route has this path, or there is no import of this id, or none any more.",
        "See /docs for the routes. The operators are POST /gathernd, POST /gather, POST /gather_elements, "
        "POST /scatternd and POST /scatter_elements.",
        ("Use one of the paths that GET /docs lists.",),
    ),
    "method_not_allowed": Entry(
        "Method not allowed",
        "The route exists and does not take this method.",
        "Use one of the methods in the Allow header of the answer.",
        ("Use one of the methods that the answer's field Allow lists.",),
    ),
    "tensor_not_found": Entry(
        "Tensor not found",
        "No resident tensor and no alias has this name, or the tensor has no such version any more. Names are "
        "case-sensitive.",
        "List the names with GET /tensors and GET /aliases, and the versions of one with GET /tensors/{name}; or "
        "upload the tensor with PUT /tensors/{name}.",
        ("Use a name that GET /tensors lists, or upload the tensor with PUT first.",),
    ),
    "model_not_found": Entry(
        "Model not found",
        "No model has this name or this version: there is one for each operator, such as 'gathernd', in version 1 "
        "only, and one for each resident tensor and each alias, in the versions that are kept.",
        "List the models with POST /v2/repository/index.",
        ("Use a model that POST /v2/repository/index lists, in a version that it has there.",),
    ),
    "request_timeout": Entry(
        "Request timeout",
        "The request did not arrive in time: the sender was too slow or stopped. A client that does not read its "
        "answer is cut off under the same name.",
        "Send faster, send less, or have the operator raise the limit.",
        (
            "Send the whole request faster, or have the operator raise GATHERND_BODY_TIMEOUT or lower "
            "GATHERND_MIN_BODY_RATE.",
        ),
    ),
    "header_too_large": Entry(
        "Header too large",
        "The request line and header fields are too long or too many.",
        "Send fewer and shorter header fields.",
        (
            "Send fewer and shorter header fields, cookies above all, or have the operator raise {setting}.",
            "Send fewer and shorter header fields, cookies above all.",
        ),
    ),
    "name_conflict": Entry(
        "Name conflict",
        "Tensors and aliases share their names, and this one is of the other kind: the name of an alias for an upload "
        "or the removal of a tensor, or that of a tensor for an alias.",
        "Use another name, or the routes of the kind that it is: GET /aliases lists the aliases.",
        ("Use another name; GET /aliases lists those of aliases, and GET /tensors those of tensors.",),
    ),
    "tensor_in_use": Entry(
        "Tensor in use",
        "An alias names the tensor, or the version of it, that was to be removed.",
        "Move the alias to another version with PUT /aliases/{alias}, or remove it with DELETE /aliases/{alias}, and "
        "remove the tensor then.",
        ("Move or remove the aliases that GET /aliases lists for the tensor, and repeat the request.",),
    ),
    "precondition_failed": Entry(
        "Precondition failed",
        "If-Match or If-None-Match does not hold for the tensor, or the alias, as it is now.",
        "Read the current ETag, decide again, and send that one.",
        ("Read the ETag with GET, decide again, and send that one in If-Match.",),
    ),
    "range_not_satisfiable": Entry(
        "Range not satisfiable",
        "The rows asked for are not rows of the tensor: 0 <= a <= b <= n must hold.",
        "Ask for rows=a:b within the tensor's first dimension.",
        ("Ask for rows=a:b with 0 <= a <= b <= n, the rows that the tensor has.",),
    ),
    "payload_too_large": Entry(
        "Payload too large",
        "The body, as sent or as inflated, is over the limit, or could never fit the memory budget.",
        "Send less, use a binary format, upload the data once as a resident tensor, or have the operator raise the "
        "limit.",
        (
            "Send at most {maximum} bytes, or have the operator raise {setting}.",
            "Send at most {maximum} bytes: the limit {limit} is fixed.",
            "Send fewer bytes, or upload the data once as a resident tensor.",
        ),
    ),
    "unsupported_media_type": Entry(
        "Unsupported media type",
        "The route does not read this Content-Type or Content-Encoding.",
        "With curl add -H 'Content-Type: application/json'. Encodings are gzip and deflate.",
        ("Send 'Content-Type: application/json' with a JSON body.",),
    ),
    "invalid_field": Entry(
        "Invalid field",
        "A field is missing, unknown, given twice, of the wrong JSON type or not one of the values it may have.",
        "Compare the request with the schema at /openapi.json; the pointer names the field.",
        (
            "Correct {pointer} so that it is as /openapi.json describes it.",
            "Correct the request so that it is as /openapi.json describes it.",
        ),
    ),
    "unsupported_dtype": Entry(
        "Unsupported dtype",
        "The element type is not known, or the dialect does not allow it for data or for indices, or the format cannot "
        "carry it.",
        "Convert the tensor, choose another dialect (openvino-8 takes indices of every integer type), or another "
        "format (JSON carries every type).",
        (
            "Convert {pointer} to a type that is taken here.",
            "Convert the tensor to a type that is taken here, or send it as JSON, which carries every type.",
        ),
    ),
    "value_not_representable": Entry(
        "Value not representable",
        "A value cannot be held by its dtype: out of range, not integral, not true or false, or a string with a lone "
        "surrogate. Values are never wrapped, clipped or truncated; floats are rounded once, half to even.",
        "Correct the value or choose a wider dtype; the pointer names the value.",
        (
            "Correct the value at {pointer}, or choose a wider dtype.",
            "Correct the value, or choose a wider dtype.",
        ),
    ),
    "element_count_mismatch": Entry(
        "Element count mismatch",
        "The number of values or bytes is not what shape and dtype ask for, or the lists nest otherwise than shape "
        "says. Ragged lists are refused even where the total would fit.",
        "Send exactly as many values as the product of the shape, flat in row-major order or nested as shape says.",
        (
            "Send as many values or bytes at {pointer} as the product of the shape asks for.",
            "Send as many values or bytes as the product of the shape asks for.",
        ),
    ),
    "rank_too_small": Entry(
        "Rank too small",
        "GatherND needs data and indices of rank 1 or more; Gather and GatherElements need data of rank 1 or more.",
        "Add a dimension: shape [1] instead of [].",
        (
            "Give {pointer} a dimension: [1] in place of [].",
            "Give the tensor a dimension: shape [1] in place of [].",
        ),
    ),
    "rank_mismatch": Entry(
        "Rank mismatch",
        "GatherElements and ScatterElements need indices of the rank of data: each entry of indices names the item at "
        "its own place, but for the axis. Bags of a lookup that are pooled need indices of rank 1.",
        "Give indices as many dimensions as data has; for whole slices use POST /gather or POST /scatternd.",
        (
            "Give indices {high} dimensions, as many as data has, or use POST /gather for whole slices.",
            "Give indices as many dimensions as data has, or use POST /gather for whole slices.",
        ),
    ),
    "batch_dims_out_of_range": Entry(
        "batch_dims out of range",
        "batch_dims must be at least 0 and less than both ranks; the dialect onnx-11 has none, so it must be 0 there. "
        "Beside the axis of Gather-8 it may equal the smaller rank or count from the rank of indices, and is no more "
        "than the axis.",
        "Use a smaller batch_dims, or another dialect than onnx-11.",
        (
            "Use a batch_dims from {low} to {high}.",
            "Use a batch_dims that is less than both ranks.",
        ),
    ),
    "batch_shape_mismatch": Entry(
        "Batch shape mismatch",
        "The first batch_dims dimensions of data and of indices must be equal, one by one. Nothing is broadcast.",
        "Give both tensors the same leading dimensions.",
        (
            "Make dimension {axis} of indices {size}, as in data.",
            "Give data and indices the same leading dimensions.",
        ),
    ),
    "index_depth_out_of_range": Entry(
        "Index depth out of range",
        "The last dimension of indices is the length of one index tuple: at least 1 and at most rank(data) - "
        "batch_dims.",
        "Make the last dimension of indices the number of data axes that you index.",
        (
            "Make the last dimension of indices {low}.",
            "Make the last dimension of indices the number of data axes that you index.",
        ),
    ),
    "axis_out_of_range": Entry(
        "Axis out of range",
        "axis must be within [-r, r-1] where r is the rank of data.",
        "Use an axis that data has; negative ones count from the back.",
        (
            "Use an axis from {low} to {high}.",
            "Use an axis that data has.",
        ),
    ),
    "indices_shape_mismatch": Entry(
        "Indices shape mismatch",
        "GatherElements and ScatterElements need indices that are no larger than data on every axis but `axis`. "
        "Nothing is broadcast.",
        "Cut indices to the size of data on every other axis, or choose another axis.",
        (
            "Make dimension {axis} of indices {size} or less, as data has {size} there, or choose another axis.",
            "Cut indices to the size of data on every axis but the operator's own.",
        ),
    ),
    "index_out_of_bounds": Entry(
        "Index out of bounds",
        "An index is outside its own axis of data. Every component is checked against its axis, never the flat offset. "
        "All bad components are counted in `total`, the first ten in row-major order are listed.",
        "Correct the index; `allowed` gives the range, null on an axis of size 0, where no index is valid. "
        "A gather can also clip, wrap or fill what is out of bounds: `out_of_bounds`.",
        (
            "Use an index from {low} to {high} at {pointer}, since axis {axis} of data has size {size}; a gather also "
            "takes 'out_of_bounds'.",
            "Send no index for axis {axis}, which has size {size}, so that none is valid.",
            "Use indices within the size of each axis of data; a gather also takes 'out_of_bounds'.",
        ),
    ),
    "output_too_large": Entry(
        "Output too large",
        "The answer would have more bytes than the limit. This is decided from the shapes, before anything is "
        "allocated.",
        "Ask for fewer slices a request, or have the operator raise GATHERND_MAX_OUTPUT_BYTES.",
        (
            "Ask for fewer slices a request, so that the output has at most {maximum} bytes, or have the operator "
            "raise {setting}.",
            "Ask for fewer slices a request.",
        ),
    ),
    "limit_exceeded": Entry(
        "Limit exceeded",
        "A rank, a dimension, an element count, a byte size or the bytes of a string are over the service's limit, "
        "which `limit` and `maximum` name.",
        "Send smaller tensors, or have the operator raise the limit.",
        (
            "Send a smaller tensor: the limit {limit} is {maximum}, which the operator can raise with {setting}.",
            "Send a smaller request: the limit {limit} is {maximum}, which is fixed.",
            "Send a smaller request.",
        ),
    ),
    "updates_shape_mismatch": Entry(
        "Updates shape mismatch",
        "A scatter needs updates of shape indices.shape[:-1] + data.shape[k:], and of the tensor's dtype; "
        "ScatterElements needs them of the shape of indices; the gradient of a gather needs grad_output of the shape "
        "of the gather's output; a lookup one weight for each index.",
        "Send one slice of the tensor for each index tuple, or for ScatterElements one item for each entry.",
        ("Send updates of shape indices.shape[:-1] + tensor.shape[k:], one slice for each index tuple.",),
    ),
    "offsets_invalid": Entry(
        "Offsets invalid",
        "The offsets of a pooled feature say where each bag begins: they have one dimension, begin with 0, never fall, "
        "and are at most the number of indices. The last bag ends with the indices.",
        "Send for each bag the number of indices before it: for bags of 2, 0 and 3 indices 0, 2, 2.",
        ("Send offsets that begin with 0, never fall, and are at most the number of indices.",),
    ),
    "feature_mismatch": Entry(
        "Feature mismatch",
        "The outputs of a lookup's features are joined on axis 1 unless `concat` is false, and then all have the same "
        "type, the same number of rows, and the same sizes behind axis 1.",
        "Send `concat` false, or give each feature as many indices or bags, of tensors of one type.",
        (
            "Send 'concat': false for an output of its own for each feature, or give all the same type and number of "
            "rows.",
        ),
    ),
    "device_unavailable": Entry(
        "Device unavailable",
        "The request asks for a GPU where there is none, or with a type that it cannot hold.",
        "Use device auto, which takes the fastest device that can do it.",
        ("Write 'auto' in place of 'gpu' for the device, which takes the fastest that can do it.",),
    ),
    "overloaded": Entry(
        "Overloaded",
        "The queue or the memory budget is full at this moment, or as many requests are under way as may be; `limit` "
        "says which. Nothing was done.",
        "Send the request again after the seconds that Retry-After names.",
        (
            "Send the request again after {retry_after} s, or have the operator raise {setting} if this goes on.",
            "Send the request again after {retry_after} s.",
        ),
    ),
    "not_ready": Entry(
        "Not ready",
        "The service is starting, or is being stopped.",
        "Wait until GET /readyz answers 200.",
        ("Send the request again after {retry_after} s, once GET /readyz answers 200.",),
    ),
    "deadline_exceeded": Entry(
        "Deadline exceeded",
        "The work was not done before the deadline of the caller or of the service.",
        "Send it again after the seconds that Retry-After names, or allow more time: X-Gathernd-Timeout has seconds, "
        "the parameter `timeout` of the inference protocol microseconds.",
        (
            "Send the request again after {retry_after} s, or allow it more time: X-Gathernd-Timeout has seconds, "
            "`timeout` of the inference protocol microseconds, and the operator's limit is GATHERND_DEADLINE.",
        ),
    ),
    "shard_unavailable": Entry(
        "Shard unavailable",
        "The table is in row ranges on several services, and none of those that have a range which the request needs "
        "answers; `ranges` says which rows, `errors` which indices need them. Requests for other rows succeed.",
        "Send the request again after the seconds that Retry-After names; an operator looks after the shards.",
        ("Send the request again after {retry_after} s, or leave out the indices that need these rows.",),
    ),
    "not_implemented": Entry(
        "Not implemented",
        "The inference protocol has this and the service does not offer it: shared memory, classification of an "
        "output, and changing log and trace settings; or a table in row ranges, which is immutable, would be changed.",
        "Send the tensors in the request; an operator sets the log level when the service starts.",
        ("Leave this part of the protocol out, and send the tensors in the request itself.",),
    ),
    "tensor_damaged": Entry(
        "Tensor damaged",
        "The file of this resident tensor no longer holds what was acknowledged. Other tensors are served.",
        "Upload the tensor again, or restore the folder from a backup.",
        ("Upload the tensor again with PUT, or have the operator restore the store from a backup.",),
    ),
    "import_failed": Entry(
        "Import failed",
        "The file at the URL of an import could not be read: its server does not answer, refuses, or cuts the "
        "connection; the file changed meanwhile, does not match its checksum, or is no sound npy or safetensors file; "
        "its host has an address that is not public. Nothing was changed.",
        "Check the URL from the machine of the service, and send the request again; or download the file and upload it "
        "with PUT /tensors/{name}.",
        ("Check that the service can read the URL, and send the request again, or upload the file with PUT.",),
    ),
    "insufficient_storage": Entry(
        "Insufficient storage",
        "The disk is full, or the quota of the store is reached: bytes, tensors, or Idempotency-Keys to remember. The "
        "old content of the tensor is as it was.",
        "Delete tensors, or have the operator make room or raise the quota.",
        (
            "Delete tensors that are not needed, or have the operator raise {setting}.",
            "Delete tensors that are not needed, or have the operator make room on the disk.",
        ),
    ),
    "internal": Entry(
        "Internal error",
        "The service failed. This is a defect of ours, not of the request.",
        "Report it with the request_id, which the service's log has too.",
        ("Report it to the operator with the request_id, which the service's log has too.",),
    ),
}

SETTING_OF_LIMIT: Final[Mapping[str, str]] = {
    "body_bytes": "GATHERND_MAX_JSON_BYTES for JSON or GATHERND_MAX_BODY_BYTES for the binary formats",
    "connections": "GATHERND_MAX_CONNECTIONS",
    "dimension": "GATHERND_MAX_DIMENSION",
    "elements": "GATHERND_MAX_ELEMENTS",
    "features": "GATHERND_MAX_FEATURES",
    "grpc_calls": "GATHERND_MAX_REQUESTS or GATHERND_MEMORY_BUDGET",
    "header_bytes": "GATHERND_MAX_HEADER_BYTES",
    "header_fields": "GATHERND_MAX_HEADER_FIELDS",
    "idempotency_keys": "GATHERND_MAX_IDEMPOTENCY_KEYS",
    "imports": "GATHERND_MAX_IMPORTS",
    "json_bytes": "GATHERND_MAX_JSON_BYTES",
    "memory_budget": "GATHERND_MEMORY_BUDGET",
    "message_bytes": "GATHERND_GRPC_MAX_MESSAGE_BYTES",
    "output_bytes": "GATHERND_MAX_OUTPUT_BYTES",
    "queue": "GATHERND_MAX_QUEUE",
    "queue_timeout": "GATHERND_QUEUE_TIMEOUT",
    "rank": "GATHERND_MAX_RANK",
    "requests": "GATHERND_MAX_REQUESTS",
    "store_bytes": "GATHERND_MAX_STORE_BYTES",
    "store_aliases": "GATHERND_MAX_TENSORS",
    "store_tensors": "GATHERND_MAX_TENSORS",
    "string_bytes": "GATHERND_MAX_STRING_BYTES",
    "upload_bytes": "GATHERND_MAX_UPLOAD_BYTES",
}
"""The setting behind each limit that an operator may change, by the name that errors have for it in `limit`."""
_LARGEST: Final = 2**63 - 1
"""A limit that no setting can raise."""


def hint_of(error: GatherError, retry_after: int) -> str:
    """One sentence on how to mend the request: the error's own, or the catalogue's with the facts of the error.

    `retry_after` is what the answer's field Retry-After says where it has one.
    """
    if error.hint is not None:
        return error.hint
    facts = _facts(error, retry_after)
    for template in CATALOGUE[error.code].hints:
        try:
            return template.format_map(facts)
        except KeyError:
            continue
    raise AssertionError("the last template needs no facts")


def _facts(error: GatherError, retry_after: int) -> dict[str, object]:
    """What templates may name: pointer, axis and size of the first place, its `low` and `high`; `limit`, `maximum` and
    `setting` of a limit; `retry_after` in seconds. Only what the error has.
    """
    facts: dict[str, object] = {"retry_after": retry_after}
    if error.places:
        place = error.places[0]
        if place.pointer:
            facts["pointer"] = shorten(place.pointer)
        if place.axis is not None and place.size is not None:
            facts["axis"], facts["size"] = place.axis, place.size
        if place.allowed is not None:
            facts["low"], facts["high"] = place.allowed
    facts.update(error.facts)
    setting = SETTING_OF_LIMIT.get(str(error.facts.get("limit")))
    if setting is not None and error.facts.get("maximum") != _LARGEST:
        facts["setting"] = setting
    return facts
