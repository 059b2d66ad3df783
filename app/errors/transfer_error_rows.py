"""Errors in the transfer of a request: in its format, access rights, names, conditions and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from app.errors.error_row import ErrorRow, Example

TransferCode = Literal[
    "malformed_request",
    "unauthorized",
    "forbidden",
    "not_found",
    "method_not_allowed",
    "tensor_not_found",
    "model_not_found",
    "request_timeout",
    "header_too_large",
    "name_conflict",
    "tensor_in_use",
    "precondition_failed",
    "range_not_satisfiable",
    "payload_too_large",
    "unsupported_media_type",
]

ROWS: Final[Mapping[TransferCode, ErrorRow]] = {
    "malformed_request": ErrorRow(
        "Malformed request",
        status=400,
        meaning=(
            "The body is not what its Content-Type says: invalid JSON (a bare NaN or a duplicate key counts as "
            "invalid), broken framing, or a binary part that ends early."
        ),
        fix=(
            'Send valid JSON in UTF-8. Write non-finite numbers as the strings "NaN", "Infinity" and '
            '"-Infinity", and use each key only once.'
        ),
        hints=("Send one JSON object in UTF-8, or a complete body of the type that Content-Type names.",),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [NaN, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [1, 1], "values": [0]}}'""",
            "the body is not JSON in UTF-8, nested at most 512 levels deep; the error is at byte 61",
            hint='Write "NaN" in place of NaN at byte 61.',
        ),
    ),
    "unauthorized": ErrorRow(
        "Unauthorized",
        status=401,
        grpc_status="UNAUTHENTICATED",
        meaning="The service requires an API key. The request has no key, or an unknown one.",
        fix="Send 'Authorization: Bearer KEY'. An operator creates a key with 'gathernd keys add'.",
        hints=(
            (
                "Send 'Authorization: Bearer KEY' with a key created by 'gathernd keys add'; the Python client and the "
                "command read it from the environment variable GATHERND_API_KEY."
            ),
        ),
        example=Example(
            "curl -s http://127.0.0.1:8080/tensors",
            "this service requires an API key: send 'Authorization: Bearer KEY'",
            about="The service has `GATHERND_API_KEYS_FILE` set.",
        ),
    ),
    "forbidden": ErrorRow(
        "Forbidden",
        status=403,
        grpc_status="PERMISSION_DENIED",
        meaning=(
            "The service understood the request but refuses it. Possible reasons: The key lacks the required scope. "
            "The Host or Origin header is not allowed (this is checked on a loopback address, and if "
            "GATHERND_ALLOWED_HOSTS is set). The service has no keys, so it accepts changes to tensors over loopback "
            "only. GATHERND_IMPORT_FROM does not allow the URL of an import."
        ),
        fix=(
            "Use a key with the required scope; call the service by its own name, or add the name to "
            "GATHERND_ALLOWED_HOSTS; set GATHERND_API_KEYS_FILE to change tensors from other hosts; add a prefix of "
            "the URL to GATHERND_IMPORT_FROM."
        ),
        hints=("Use a key with the required scope, and call the service by one of its own names.",),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' \\
-H 'Origin: https://example.com' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]}}'""",
            "requests from pages of the origin 'https://example.com' are refused",
            hint="Leave out the field Origin, or have the operator add the origin to GATHERND_CORS_ORIGINS.",
            about=(
                "A page of another site posts to a service on a loopback address; its Origin header shows which site."
            ),
        ),
    ),
    "not_found": ErrorRow(
        "Not found",
        status=404,
        grpc_status="UNIMPLEMENTED",
        meaning=(
            "No route has this path, no import has this id, or the import is so old that the service has forgotten it."
        ),
        fix=(
            "See /docs for the routes. The operators are POST /gathernd, POST /gather, POST /gather_elements, POST "
            "/scatternd and POST /scatter_elements."
        ),
        hints=("Use one of the paths that GET /docs lists.",),
        example=Example(
            """curl -s http://127.0.0.1:8080/gather_nd -H 'Content-Type: application/json' -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]}}'""",
            "no route has the path /gather_nd",
            hint="Use the path '/gathernd'.",
        ),
    ),
    "method_not_allowed": ErrorRow(
        "Method not allowed",
        status=405,
        grpc_status="UNIMPLEMENTED",
        meaning="The route exists but does not accept this method.",
        fix="Use one of the methods in the response's Allow header.",
        hints=("Use one of the methods in the response's Allow header.",),
        example=Example(
            "curl -s http://127.0.0.1:8080/gathernd",
            "/gathernd does not accept GET",
            hint="Use the method POST.",
        ),
    ),
    "tensor_not_found": ErrorRow(
        "Tensor not found",
        status=404,
        grpc_status="NOT_FOUND",
        meaning=(
            "No resident tensor or alias has this name, or this version of the tensor no longer exists. Names are "
            "case-sensitive."
        ),
        fix=(
            "List the names with GET /tensors and GET /aliases, and the versions of a tensor with GET /tensors/{name}; "
            "or upload the tensor with PUT /tensors/{name}."
        ),
        hints=("Use a name that GET /tensors lists, or upload the tensor with PUT first.",),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data": {"tensor": "itmes"},
  "indices": {"dtype": "int64", "shape": [1, 1], "values": [0]}}'""",
            "no tensor is named 'itmes'",
            members={"errors": [{"pointer": "/data/tensor"}]},
            hint="Write 'items' in place of 'itmes'.",
            about="The service has the resident tensor `items`, float32 of shape [3, 2].",
        ),
    ),
    "model_not_found": ErrorRow(
        "Model not found",
        status=404,
        grpc_status="NOT_FOUND",
        meaning=(
            "No model has this name and version. Each operator is a model, such as 'gathernd', with version 1 only. "
            "Each resident tensor and each alias is a model, with the versions that are kept."
        ),
        fix="List the models with POST /v2/repository/index.",
        hints=("Use a model and a version that POST /v2/repository/index lists.",),
        example=Example(
            "curl -s http://127.0.0.1:8080/v2/models/gather_nd",
            "no model is named 'gather_nd'",
            hint="Write 'gathernd' in place of 'gather_nd'.",
        ),
    ),
    "request_timeout": ErrorRow(
        "Request timeout",
        status=408,
        grpc_status="DEADLINE_EXCEEDED",
        meaning=(
            "The request did not arrive in time: the sender was too slow or stopped. A connection whose client does "
            "not read the response is closed with the same code."
        ),
        fix="Send faster, send less, or have the operator raise the limit.",
        hints=(
            (
                "Send the request faster, or have the operator raise GATHERND_BODY_TIMEOUT or lower "
                "GATHERND_MIN_BODY_RATE."
            ),
        ),
        example=Example(
            "(printf '{'; sleep 20) | curl -s http://127.0.0.1:8080/gathernd -X POST -H 'Content-Type: "
            "application/json' -T -",
            "the body paused for more than 10 s",
        ),
    ),
    "header_too_large": ErrorRow(
        "Header too large",
        status=431,
        grpc_status="RESOURCE_EXHAUSTED",
        meaning="The request line and header fields are too long or too many.",
        fix="Send fewer and shorter header fields.",
        hints=(
            "Send fewer and shorter header fields, especially cookies, or have the operator raise {setting}.",
            "Send fewer and shorter header fields, especially cookies.",
        ),
        example=Example(
            "curl -s http://127.0.0.1:8080/gathernd -H \"Cookie: $(head -c 70000 /dev/zero | tr '\\0' x)\"",
            "the header has more than 65536 bytes",
            members={"limit": "header_bytes", "maximum": 65536},
        ),
    ),
    "name_conflict": ErrorRow(
        "Name conflict",
        status=409,
        grpc_status="ALREADY_EXISTS",
        meaning=(
            "Tensors and aliases share one set of names. The request uploads or removes a tensor under the name of an "
            "alias, or sets an alias under the name of a tensor."
        ),
        fix=(
            "Use another name. To change the tensor or alias that has the name, use the routes of its kind; GET "
            "/aliases lists the aliases."
        ),
        hints=("Use another name; GET /aliases and GET /tensors list the names in use.",),
        example=Example(
            'curl -s http://127.0.0.1:8080/aliases/items -X PUT -d \'{"tensor": "items@1"}\' -H \'Content-Type: '
            "application/json'",
            "'items' is a tensor, and tensors and aliases share one set of names",
            members={"errors": [{"pointer": "/name"}]},
            hint="Use another name for the alias, or remove the tensor at /tensors/items first.",
            about="The service has the resident tensor `items`, float32 of shape [3, 2].",
        ),
    ),
    "tensor_in_use": ErrorRow(
        "Tensor in use",
        status=409,
        grpc_status="FAILED_PRECONDITION",
        meaning="An alias points to the tensor or version that the request removes.",
        fix=(
            "Point the alias to another version with PUT /aliases/{alias}, or remove it with DELETE /aliases/{alias}; "
            "then remove the tensor."
        ),
        hints=("Move or remove the aliases that GET /aliases lists for the tensor, then repeat the request.",),
        example=Example(
            "curl -s http://127.0.0.1:8080/tensors/items -X DELETE",
            "'items' cannot be removed: the alias 'live' points to 'items@1'",
            members={"errors": [{"pointer": "/name"}]},
            hint=(
                "Move the alias with PUT /aliases/live to another version, or remove it with DELETE, and repeat the "
                "request."
            ),
            about=(
                "The service has the resident tensor `items`, float32 of shape [3, 2]. The alias `live` points to its "
                "version 1."
            ),
        ),
    ),
    "precondition_failed": ErrorRow(
        "Precondition failed",
        status=412,
        grpc_status="FAILED_PRECONDITION",
        meaning=(
            "If-Match or If-None-Match does not hold for the current tensor or alias. In a cluster, this error also "
            "means that a scatter was retried with its Idempotency-Key after the version it was first sent to was "
            "removed."
        ),
        fix="Read the current ETag, decide whether the change still applies, and send that ETag.",
        hints=(
            (
                "Read the current ETag with GET, decide whether the change still applies, and send that ETag in "
                "If-Match."
            ),
        ),
        example=Example(
            "curl -s http://127.0.0.1:8080/tensors/items -X DELETE -H 'If-Match: \"4e07408562bedb8b-3\"'",
            'If-Match does not hold: the ETag is "9f86d081884c7d65-0"',
            hint="Read the tensor again, and send 'If-Match: \"9f86d081884c7d65-0\"' if the change still applies.",
            about="The service has the resident tensor `items`, float32 of shape [3, 2].",
        ),
    ),
    "range_not_satisfiable": ErrorRow(
        "Range not satisfiable",
        status=416,
        grpc_status="OUT_OF_RANGE",
        meaning=(
            "The requested rows are outside the tensor: rows=a:b needs 0 <= a <= b <= n, where n is the number of rows."
        ),
        fix="Request rows=a:b within the tensor's first dimension.",
        hints=("Request rows=a:b with 0 <= a <= b <= n, where n is the tensor's number of rows.",),
        example=Example(
            "curl -s 'http://127.0.0.1:8080/tensors/items/content?rows=2:9'",
            "rows 2:9 were requested; the tensor has 3 rows",
            members={"errors": [{"pointer": "/query/rows"}]},
            hint="Request rows=2:3, since the tensor has 3 rows.",
            about="The service has the resident tensor `items`, float32 of shape [3, 2].",
        ),
    ),
    "payload_too_large": ErrorRow(
        "Payload too large",
        status=413,
        grpc_status="RESOURCE_EXHAUSTED",
        meaning="The body exceeds the limit, as sent or after decompression, or could never fit the memory budget.",
        fix=(
            "Send less, use a binary format, upload the data once as a resident tensor, or have the operator raise "
            "the limit."
        ),
        hints=(
            "Send at most {maximum} bytes, or have the operator raise {setting}.",
            "Send at most {maximum} bytes: the limit {limit} is fixed.",
            "Send fewer bytes, or upload the data once as a resident tensor.",
        ),
        example=Example(
            "head -c 70000000 /dev/zero | curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' "
            "--data-binary @-",
            "the body is larger than the limit of 67108864 bytes",
            members={"limit": "body_bytes", "maximum": 67108864},
        ),
    ),
    "unsupported_media_type": ErrorRow(
        "Unsupported media type",
        status=415,
        meaning="The route does not accept this Content-Type or Content-Encoding.",
        fix="With curl, add -H 'Content-Type: application/json'. Supported encodings are gzip and deflate.",
        hints=("Send 'Content-Type: application/json' with a JSON body.",),
        example=Example(
            """curl -s http://127.0.0.1:8080/gathernd -d '{
  "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]}}'""",
            "'application/x-www-form-urlencoded' is not accepted here; application/json and application/x-safetensors "
            "are; with curl add -H 'Content-Type: application/json' (curl -d alone sends a form)",
            hint="Send 'Content-Type: application/json' with JSON in UTF-8; with curl, use -H.",
        ),
    ),
}
