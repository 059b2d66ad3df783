"""The routes for resident tensors.

`app.api.routes.tensors`, `tensors_content`, `tensors_scatter` and `tensors_rows` handle them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from app.api.route_rows.operation import (
    GATHER,
    TENSORS,
    Answers,
    Described,
    Operation,
    Route,
    binary,
    header,
    in_path,
    parameter,
)
from app.api.schemas.answers import GatherAnswer
from app.api.schemas.tensor_messages import RemoveAnswer, ResidentTensor, ScatterAnswer, TensorList, UpsertAnswer
from app.errors import Code
from app.formats import body_formats
from app.requests.schemas.common_fields import RESIDENT
from app.requests.schemas.management_requests import MOST_REPLICAS, ReplicasRequest
from app.requests.schemas.operator_request import RemoveRequest, ScatterRequest, UpsertRequest
from app.requests.schemas.query_fields import query_parameters
from app.security.authorizer import Access
from app.tensors.dtypes import DTYPES
from app.tensors.tensor_name import PATTERN, REFERENCE_PATTERN, RESERVED

MAX_LIST: Final = 1000
USUAL_LIST: Final = 100
"""Default number of entries in a list."""
MAX_KEEP: Final = 10_000
"""Maximum value of `keep`, in an upload or in the service's setting."""
MAX_NOTE_BYTES: Final = 1024
"""Maximum size of a version's note, in bytes of UTF-8."""
NPY, SAFETENSORS, RAW = body_formats.TENSORS
NEW_NAME: Final = in_path("name", f"Name of the tensor; not {', '.join(RESERVED[:-1])} or {RESERVED[-1]}.", PATTERN)
_NAME: Final = in_path("name", f"{RESIDENT}.", REFERENCE_PATTERN)
_READ: Final[tuple[Code, ...]] = ("tensor_not_found", "tensor_damaged")
_BODY: Final[tuple[Code, ...]] = (
    "payload_too_large", "unsupported_media_type", "unsupported_dtype", "value_not_representable",
    "element_count_mismatch", "limit_exceeded", "insufficient_storage", "precondition_failed",
)  # fmt: skip
_ETAG: Final = {
    "ETag": header("Identifies the content."),
    "X-Gathernd-Data-Version": header("Number of the version."),
}
_UNCHANGED_ETAG: Final = {"ETag": header("ETag of the current content.")}
_BY_ACCEPT: Final = {"Vary": header("Accept: it selects the format.")}
IF_MATCH: Final = parameter("If-Match", "header", "ETags, one of which must match the tensor, or * for any.")
IF_NONE_MATCH: Final = parameter(
    "If-None-Match", "header", "* if the tensor must not exist, or a list of ETags that it must not have."
)
IF_CHANGED: Final = parameter("If-None-Match", "header", "ETags; if one matches, the response is an empty 304.")
LOCATION: Final = {"Location": header("Path of the new version.")}
UNCHANGED: Final[Answers] = {304: {"description": "The ETag matches If-None-Match", "headers": _UNCHANGED_ETAG}}
_FLAG: Final = {"type": "boolean", "default": False}
MEMORY: Final = (
    parameter("prefault", "query", "Read the data into memory ahead of requests.", _FLAG),
    parameter("lock", "query", "Keep the data in memory, if the system allows it.", _FLAG),
)


_IDEMPOTENCY_KEY: Final = parameter(
    "Idempotency-Key",
    "header",
    "1 to 256 visible characters. A request repeated with its key within 24 hours gets the original response and is "
    "not carried out again.",
)


def limit(things: str) -> Described:
    """Describe the `limit` query parameter of a list."""
    schema = {"type": "integer", "minimum": 1, "maximum": MAX_LIST, "default": USUAL_LIST}
    return parameter("limit", "query", f"Largest number of {things} to list.", schema)


def keep(text: str) -> Described:
    """Describe the `keep` query parameter of a route that creates versions."""
    return parameter("keep", "query", text, {"type": "integer", "minimum": 1, "maximum": MAX_KEEP})


REPLICAS: Final = parameter(
    "replicas",
    "query",
    "In a cluster only: number of shards that hold a copy of each row range, for all versions from now on. If omitted: "
    "unchanged.",
    {"type": "integer", "minimum": 1, "maximum": MOST_REPLICAS},
)


def _download(what: str, dtype: str, shape: str) -> Answers:
    """Describe the responses of a download: the body, and the header fields for type and shape."""
    return {
        200: {
            "description": what,
            "headers": _ETAG | {"X-Gathernd-Dtype": header(dtype), "X-Gathernd-Shape": header(shape)} | _BY_ACCEPT,
            "content": {kind: binary() for kind in (RAW, NPY, SAFETENSORS)},
        },
        304: UNCHANGED[304] | {"headers": _UNCHANGED_ETAG | _BY_ACCEPT},
    }


def _dtype(names: Iterable[str]) -> Described:
    text = f"Required with {RAW} and only there: the element type."
    return parameter("dtype", "query", text, {"type": "string", "enum": list(names)})


_KEEP: Final = keep(
    "How many of the newest versions to keep, including this one; versions with aliases are kept as well. The default "
    "is the service's setting."
)
_NOTE: Final = parameter(
    "note",
    "query",
    "A note about this version, such as its run, commit and author. The note is shown wherever the version is "
    f"described. At most {MAX_NOTE_BYTES} bytes of UTF-8 without control characters.",
    {"type": "string", "maxLength": MAX_NOTE_BYTES},
)
_CAPACITY: Final = parameter(
    "capacity",
    "query",
    "Tables with keys only: number of rows to reserve space for; at least the number uploaded, which is the default. "
    "The table grows when necessary.",
    {"type": "integer", "minimum": 0},
)
_PUT: Final = Operation(
    "putTensor",
    "Upload the next version of a tensor",
    (*_BODY, "name_conflict", "keys_not_unique", "not_implemented"),
    (
        NEW_NAME,
        _dtype(DTYPES),
        parameter(
            "shape",
            "query",
            f"Required with {RAW} and only there: sizes with commas between them, as in 200000,64; empty for a scalar.",
        ),
        *MEMORY,
        _KEEP,
        _NOTE,
        REPLICAS,
        _CAPACITY,
        IF_MATCH,
        IF_NONE_MATCH,
        parameter(
            "Content-Digest", "header", "sha-256=:BASE64:, the digest of the body as sent; the service verifies it."
        ),
    ),
    request={
        "required": True,
        # Raw items come last. openapi-python-client uses the last of several binary types, and npy files are accepted
        # under that type, too. Generators that use the first type get npy, which contains the tensor's type and shape.
        "content": {
            NPY: binary("An npy file of numbers, in either order of bytes and of axes."),
            SAFETENSORS: binary(
                "A safetensors file with one tensor, or a table with keys: `keys` (int64 or uint64) and `data`, or "
                "`keys.offsets` (int64, n + 1), `keys.bytes` (uint8, the UTF-8 of all keys) and `data`, in this order."
            ),
            RAW: binary(
                "The items, row-major and little-endian. A bool is one byte, 0 or 1. A string is its length as a "
                "little-endian uint32, then its UTF-8. An npy file is also accepted."
            ),
        },
    },
    answer=ResidentTensor,
    answers={
        200: {"description": "The next version of an existing tensor", "headers": _ETAG},
        201: {"description": "Created", "headers": _ETAG | LOCATION, "model": ResidentTensor},
    },
    description="The new version becomes visible to all workers at once, and is durable by the time the response "
    "arrives. Requests that are reading the old version finish on it. Version numbers are never reused.",
)
_CONTENT: Final = Operation(
    "tensorContent",
    "Download a tensor, or some of its rows",
    (
        *_READ,
        "precondition_failed",
        "range_not_satisfiable",
        "unsupported_dtype",
        "shard_unavailable",
        "not_implemented",
    ),
    (
        _NAME,
        parameter("rows", "query", "a:b selects rows a to b - 1 of the first dimension, where 0 <= a <= b <= n."),
        IF_MATCH,
        IF_CHANGED,
    ),
    answers=_download("The content", "The element type.", "Sizes with commas between them."),
    description=f"As {RAW} (the items, in the form of an upload), {NPY} or {SAFETENSORS}: the format that Accept "
    f"prefers among those that carry the type. If the table has keys, {SAFETENSORS} includes the keys of these rows, "
    "as in an upload. The whole download is the data identified by its ETag, even if scatters arrive in the meantime.",
)
_PUT_KEYS: Final = Operation(
    "putKeys",
    "Add keys to a table, as its next version",
    (*_BODY, "tensor_not_found", "tensor_damaged", "name_conflict", "keys_not_unique", "not_implemented"),
    (
        NEW_NAME,
        _dtype(("int64", "uint64")),
        parameter("shape", "query", f"Required with {RAW} and only there: the number of keys."),
        _KEEP,
        _NOTE,
        IF_MATCH,
        parameter(
            "Content-Digest", "header", "sha-256=:BASE64:, the digest of the body as sent; the service verifies it."
        ),
    ),
    request={
        "required": True,
        "content": {
            NPY: binary("An npy file of int64 or uint64."),
            SAFETENSORS: binary(
                "One tensor, int64 or uint64; or `keys.offsets` (int64, n + 1) and `keys.bytes` (uint8), in this order."
            ),
            RAW: binary("int64 or uint64, little-endian. An npy file is also accepted."),
        },
    },
    answer=ResidentTensor,
    answers={200: {"description": "The next version", "headers": _ETAG}},
    description="One distinct key for each row. The current version must have no keys, and If-Match must name its "
    "ETag. The next version has the keys and a copy of the rows. If the rows change in the meantime, the error is "
    "precondition_failed.",
)
_GET_KEYS: Final = Operation(
    "getKeys",
    "Download the keys of a table",
    (*_READ, "no_keys", "precondition_failed", "unsupported_dtype", "shard_unavailable"),
    (_NAME, IF_MATCH, IF_CHANGED),
    answers=_download("The keys", "The type of the keys.", "Number of keys."),
    description=f"The keys, in the order of the rows of a download, as {RAW} (each string after its length), {NPY} (no "
    f"strings) or {SAFETENSORS} (`keys`; strings as `keys.offsets` and `keys.bytes`).",
)
_SCATTER: Final = Operation(
    "scatterTensor",
    "Change elements or slices of a tensor (ScatterND)",
    (
        *_READ, *_BODY, "rank_too_small", "index_depth_out_of_range", "updates_shape_mismatch", "index_out_of_bounds",
        "shard_unavailable", "not_implemented",
    ),
    (
        _NAME,
        *query_parameters(ScatterRequest),
        IF_MATCH,
        _IDEMPOTENCY_KEY,
    ),
    body=ScatterRequest,
    request={"content": {SAFETENSORS: binary("A safetensors body with `indices` and `updates`.")}},
    answer=ScatterAnswer,
    answers={200: {"description": "Done", "headers": _ETAG}},
    description="A gather sees all of a scatter or none of it, and the scatter is durable by the time the response "
    "arrives. In a cluster this holds for each row range: the ranges change one after the other, and `ranges` counts "
    "them. There, If-Match requires a table of one range. After shard_unavailable, send the scatter again with the "
    "same Idempotency-Key.",
)  # fmt: skip
_BY_KEY: Final[tuple[Code, ...]] = (
    *_READ, *_BODY, "no_keys", "rank_mismatch", "shard_unavailable", "not_implemented",
)  # fmt: skip
_BY_KEY_IN_RANGES: Final = (
    " In a cluster this holds for each row range: the ranges change one after the other, and `ranges` counts them. "
    "There, If-Match requires a table of one range. After shard_unavailable, send the request again with the same "
    "Idempotency-Key."
)
_UPSERT: Final = Operation(
    "upsertRows",
    "Change and add rows of a table by key",
    (*_BY_KEY, "updates_shape_mismatch"),
    (_NAME, *query_parameters(UpsertRequest), IF_MATCH, _IDEMPOTENCY_KEY),
    body=UpsertRequest,
    request={
        "content": {
            SAFETENSORS: binary("A safetensors body with `keys`, or `keys.offsets` and `keys.bytes`, and `updates`.")
        }
    },
    answer=UpsertAnswer,
    answers={200: {"description": "Done", "headers": _ETAG}},
    description="`reduction` combines the row of each known key with its update. A new key gets a row that starts from "
    "zeros. If a key occurs several times, its updates apply in order. A request sees all of an upsert or none of it, "
    "and the upsert is durable by the time the response arrives. The table grows when necessary; insufficient_storage "
    "changes nothing." + _BY_KEY_IN_RANGES,
)
_REMOVE: Final = Operation(
    "removeRows",
    "Remove rows of a table by key",
    _BY_KEY,
    (_NAME, *query_parameters(RemoveRequest), IF_MATCH, _IDEMPOTENCY_KEY),
    body=RemoveRequest,
    request={"content": {SAFETENSORS: binary("A safetensors body with `keys`, or `keys.offsets` and `keys.bytes`.")}},
    answer=RemoveAnswer,
    answers={200: {"description": "Done", "headers": _ETAG}},
    description="The last rows move into the gaps, so rows stay dense. Keys that the table does not have are counted "
    "and are not an error. A request sees all of a removal or none of it, and the removal is durable by the time the "
    "response arrives." + _BY_KEY_IN_RANGES,
)
TENSOR_ROUTES: Final = (
    Route("/tensors", TENSORS, Access.TENSORS, {
        "GET": Operation(
            "listTensors",
            "List the resident tensors",
            (),
            (limit("tensors"), parameter("after", "query", "List the names that sort after this one.")),
            answer=TensorList,
        )
    }),
    Route("/tensors/{name}", TENSORS, Access.TENSORS, {
        "GET": Operation(
            "getTensor",
            "Describe a tensor",
            (*_READ, "precondition_failed"),
            (_NAME, IF_MATCH, IF_CHANGED),
            answer=ResidentTensor,
            answers={200: {"description": "Its metadata", "headers": _ETAG}, **UNCHANGED},
        ),
        "PUT": _PUT,
        "DELETE": Operation(
            "deleteTensor",
            "Remove a tensor with all its versions, or only one version",
            (
                "tensor_not_found", "name_conflict", "tensor_in_use", "precondition_failed",
                "insufficient_storage", "not_implemented",
            ),
            (_NAME, IF_MATCH),
            answers={204: {"description": "Removed"}},
            status=204,
        ),
    }),
    Route("/tensors/{name}/content", TENSORS, Access.TENSORS, {"GET": _CONTENT}),
    Route("/tensors/{name}/keys", TENSORS, Access.TENSORS, {"GET": _GET_KEYS, "PUT": _PUT_KEYS}),
    Route("/tensors/{name}/scatter", TENSORS, Access.TENSORS, {"POST": _SCATTER}),
    Route("/tensors/{name}/upsert", TENSORS, Access.TENSORS, {"POST": _UPSERT}),
    Route("/tensors/{name}/remove", TENSORS, Access.TENSORS, {"POST": _REMOVE}),
    Route("/tensors/{name}/replicas", TENSORS, Access.TENSORS, {
        "PUT": Operation(
            "setReplicas",
            "Set the number of replicas of a table",
            (
                "tensor_not_found", "name_conflict", "payload_too_large", "unsupported_media_type", "shard_unavailable",
                "not_implemented",
            ),
            (NEW_NAME,),
            body=ReplicasRequest,
            answer=ResidentTensor,
            answers={200: {"description": "The metadata of the current version", "headers": _ETAG}},
            description="In a cluster only. The service responds at once; the cluster then adds or removes copies.",
        ),
    }),
)  # fmt: skip


_KEY: Final = {
    "name": "key",
    "in": "query",
    "required": True,
    "description": "A key of the table, as text; repeat it for more rows.",
    "schema": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    "style": "form",
    "explode": True,
}
ROW_ROUTES: Final = (
    Route("/tensors/{name}/rows", GATHER, Access.GATHER, {
        "GET": Operation(
            "tensorRows",
            "Rows of a table by key",
            (
                "tensor_not_found", "tensor_damaged", "no_keys", "value_not_representable", "output_too_large",
                "limit_exceeded", "deadline_exceeded", "shard_unavailable",
            ),
            (in_path("name", f"{RESIDENT}.", REFERENCE_PATTERN), _KEY),
            answer=GatherAnswer,
            description="The response of `POST /gather` to these keys with `missing` fill and `found`. A key that the "
            "table lacks returns a row of zeros, false or empty strings; `found` says which keys the table has.",
            tag="gather",
        ),
    }),
)  # fmt: skip
