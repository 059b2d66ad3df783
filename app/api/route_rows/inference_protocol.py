"""The routes for the Open Inference Protocol v2; `app.api.routes.v2_models`, `v2_infer` and others handle them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from app.api.route_rows.operation import CONTROL, GATHER, Described, Operation, Route, header, in_path
from app.api.schemas.v2_messages import (
    IndexEntry,
    InferAnswer,
    ModelMetadata,
    ModelReady,
    ServerLive,
    ServerMetadata,
    ServerReady,
    StatisticsBody,
)
from app.errors import Code
from app.operators.registry import LOOKUPS, OPERATORS
from app.requests.schemas.infer_request import infer_request
from app.security.authorizer import Access

TAG: Final = "inference protocol"
_MODEL: Final = "/v2/models/{name}"
_NAME: Final = in_path("name", "Name of the model: an operator, a resident tensor, or an alias.")
_VERSION: Final = in_path("version", "Number of the model's version.")
_OF_MODEL: Final[tuple[Code, ...]] = ("model_not_found", "unsupported_dtype", "tensor_damaged")
"""Errors of every operation on a model."""
_INFER: Final[tuple[Code, ...]] = (
    "model_not_found", "payload_too_large", "unsupported_media_type", "invalid_field", "unsupported_dtype",
    "value_not_representable", "element_count_mismatch", "output_too_large", "limit_exceeded", "device_unavailable",
    "deadline_exceeded", "shard_unavailable", "tensor_damaged", "not_implemented", "tensor_not_found", *LOOKUPS.codes,
    *(code for operator in OPERATORS.values() for code in operator.codes),
)  # fmt: skip
_INFER_HEADERS: Final = {
    "X-Gathernd-Data-ETag": header("ETag of the resident tensor that was read."),
    "X-Gathernd-Data-Version": header("Number of the version that was read."),
    "X-Gathernd-Replaced": header("Number of index components that were out of bounds, unless that is an error."),
    "X-Gathernd-Missing": header("Number of keys that the table lacks, if the request has keys."),
    "Content-Encoding": header("gzip or deflate, if requested."),
    "Inference-Header-Content-Length": {
        "description": "Bytes of JSON at the start of a binary response.",
        "schema": {"type": "integer"},
    },
}
_INFER_DESCRIPTION: Final = (
    "Items may also follow the JSON in binary (binary tensor data extension). The header field "
    "`Inference-Header-Content-Length` then has the length of the JSON, in the request and in the response. A response "
    "is compressed if `Accept-Encoding` is exactly `gzip` or `deflate`."
)
_INFER_REQUEST: Final = infer_request(*(operator.signature for operator in OPERATORS.values()))
_WANTS_READY: Final = {
    "content": {"application/json": {"schema": {"type": "object", "properties": {"ready": {"type": "boolean"}}}}}
}


def _route(path: str, method: str, name: str, summary: str, *codes: Code, **described: Any) -> Route:
    return Route(path, CONTROL, Access.GATHER, {method: Operation(name, summary, codes, tag=TAG, **described)})


def _model(path: str, suffix: str, *parameters: Described) -> Iterator[Route]:
    """Yield the routes of one model; `suffix` is part of the operations' names."""
    for below, name, summary, answer in (
        ("", "Metadata", "Inputs and outputs of a model", ModelMetadata),
        ("/ready", "Ready", "Whether a model is ready", ModelReady),
        ("/config", "Config", "The model's configuration, in Triton's form", dict[str, Any]),
        ("/stats", "Statistics", "Statistics of a model", StatisticsBody),
    ):
        operation = f"model{suffix}{name}"
        yield _route(path + below, "GET", operation, summary, *_OF_MODEL, parameters=parameters, answer=answer)
    infer = Operation(
        f"model{suffix}Infer",
        "Gather",
        _INFER,
        parameters,
        body=_INFER_REQUEST,
        answer=InferAnswer,
        answers={200: {"description": "The outputs", "headers": _INFER_HEADERS}},
        description=_INFER_DESCRIPTION,
        tag=TAG,
    )
    yield Route(f"{path}/infer", GATHER, Access.GATHER, {"POST": infer})


def _settings(path: str, name: str, *codes: Code, parameters: tuple[Described, ...] = ()) -> Route:
    """Return the route for settings that can be read but not changed."""
    described: dict[str, Any] = {"parameters": parameters, "answer": dict[str, Any], "tag": TAG}
    text = "Not supported: an operator sets them when the service starts"
    operations = {
        "GET": Operation(f"get{name}", "The current settings", codes, **described),
        "POST": Operation(f"update{name}", text, ("not_implemented", *codes), **described),
    }
    return Route(path, CONTROL, Access.GATHER, operations)


def _shared_memory(kind: str) -> Iterator[Route]:
    """Yield the routes for one kind of shared memory. Shared memory is not supported."""
    region = in_path("region", "Name of the region.")
    for method, path, name in (
        ("GET", "status", "Status"),
        ("GET", "region/{region}/status", "RegionStatus"),
        ("POST", "region/{region}/register", "Register"),
        ("POST", "region/{region}/unregister", "RegionUnregister"),
        ("POST", "unregister", "Unregister"),
    ):
        yield _route(
            f"/v2/{kind}sharedmemory/{path}",
            method,
            f"{kind}SharedMemory{name}",
            "Not supported",
            "not_implemented",
            parameters=(region,) if "{region}" in path else (),
            answer=dict[str, Any],
            is_offered=False,
        )


def _health(path: str, name: str, summary: str, answer: Any) -> Route:
    return _route(path, "GET", name, summary, answer=answer)._replace(access=Access.PUBLIC)


INFERENCE_PROTOCOL: Final = (
    _route("/v2", "GET", "serverMetadata", "Name, version and extensions", answer=ServerMetadata),
    _health("/v2/health/live", "serverLive", "Whether the process is alive", ServerLive)._replace(health="alive"),
    _health("/v2/health/ready", "serverReady", "Whether the service accepts requests", ServerReady)._replace(
        health="ready"
    ),
    # This must come before the routes of one model, which would match "stats" as a model name.
    _route("/v2/models/stats", "GET", "statistics", "Statistics of all models", answer=StatisticsBody),
    *_model(_MODEL, "", _NAME),
    *_model(f"{_MODEL}/versions/{{version}}", "Version", _NAME, _VERSION),
    _route(
        "/v2/repository/index",
        "POST",
        "repositoryIndex",
        'All versions of all models, or only those that are ready if the body is {"ready": true}',
        "payload_too_large",
        "invalid_field",
        request=_WANTS_READY,
        answer=list[IndexEntry],
    ),
    *(
        _route(
            f"/v2/repository/models/{{name}}/{action.lower()}",
            "POST",
            f"repository{action}",
            text,
            *_OF_MODEL,
            parameters=(_NAME,),
        )
        for action, text in (
            ("Load", "Does nothing: a model is loaded as long as it exists"),
            ("Unload", "Does nothing: a model stays loaded as long as it exists"),
        )
    ),
    _settings("/v2/logging", "LogSettings"),
    _settings("/v2/trace/setting", "TraceSettings"),
    _settings(f"{_MODEL}/trace/setting", "ModelTraceSettings", *_OF_MODEL, parameters=(_NAME,)),
    *_shared_memory("system"),
    *_shared_memory("cuda"),
)
