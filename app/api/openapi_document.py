"""The OpenAPI description: what all operations share, and how FastAPI is told of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from app import __version__
from app.api.error_responses import example_answer
from app.api.route_rows.operation import header
from app.api.route_rows.tensors import IF_CHANGED
from app.api.route_table import DATA_PLANE, OPERATIONS, ROUTES
from app.api.schemas.gather_answer import Problem
from app.api.schemas.v2_messages import ProtocolError
from app.errors import CODES, Code
from app.errors.catalogue import CATALOGUE
from app.operators.registry import OPERATORS
from app.security.authorizer import Access

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

# ONNX's texts first, as most callers come from there.
_TEXTS: Final = sorted((text for row in OPERATORS.values() for text in row.texts), key=lambda text: text[:4] != "ONNX")
_DESCRIPTION: Final = (
    f"Gathers slices of a tensor by index and scatters updates into one, exactly as {', '.join(_TEXTS[:-1])} and "
    f"{_TEXTS[-1]} say, or answers with an error that names the broken rule and the place that broke it.\n\n"
    "Every answer has the header fields `X-Request-ID`, that of the request where it sent one of 1 to 128 letters, "
    "digits, `.`, `_` and `-`, `Server-Timing`, and `X-Content-Type-Options: nosniff`. A request may say in "
    "`X-Gathernd-Timeout` how many seconds its caller waits: where its work has not begun by then, the answer is "
    "`deadline_exceeded`."
)
ABOUT: Final[dict[str, Any]] = {
    "title": "gathernd",
    "version": __version__,
    "description": _DESCRIPTION,
    "license_info": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    "openapi_tags": [
        {"name": "gather", "description": "The operators: data inline, or a resident tensor by its name"},
        {"name": "scatter", "description": "Their inverses: a copy of the data with updates; nothing changes in place"},
        {"name": "tensors", "description": "Resident tensors, their versions and aliases of them"},
        {"name": "inference protocol", "description": "Open Inference Protocol v2, for its clients"},
        {"name": "health", "description": "For supervisors and Prometheus"},
        {"name": "pages", "description": "For people"},
    ],
}
"""What the description says of the service, as arguments of `FastAPI`."""
REASONS: Final = {
    400: "The body cannot be read",
    401: "No key, or an unknown one",
    403: "Refused",
    404: "Not found",
    408: "The request did not arrive in time",
    409: "It conflicts with what there is",
    412: "A condition does not hold",
    413: "The body is too large",
    415: "The media type is not read here",
    416: "These rows are not there",
    422: "The request breaks a rule",
    431: "The header is too large",
    500: "The service failed",
    501: "Not offered",
    503: "Not now; see Retry-After",
    502: "The source could not be read",
    507: "The store is full",
}
EVERYWHERE: Final[tuple[Code, ...]] = (
    "malformed_request", "forbidden", "request_timeout", "header_too_large", "internal", "overloaded", "not_ready",
)  # fmt: skip
"""Errors of every operation: the limit on connections holds for all, and a stop cuts off what outlasts it."""
OF_MODEL: Final[tuple[Code, ...]] = ("model_not_found", "unsupported_dtype", "tensor_damaged")
"""Errors of every operation on a model."""
_HEADERS: Final = {
    401: {"WWW-Authenticate": {"description": "Bearer: a key is asked for.", "schema": {"type": "string"}}},
    503: {
        "Retry-After": {
            "description": "Seconds after which to send the request again.",
            "schema": {"type": "integer", "minimum": 1},
        }
    },
}
"""The header fields of errors, by status."""
_BEARER: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "A key of the service, where its operator asks for keys. What changes tensors needs a key with the "
    "scope `tensors`, the metrics any key, everything else one with the scope `gather`.",
}


def operation(app: FastAPI, name: str, **described: Any) -> Callable[[Endpoint], Endpoint]:
    """Registers an endpoint as the operation `name` of the table of routes, which has its path and method.

    `described` are further arguments of `FastAPI.api_route`.
    """
    method, route = OPERATIONS[name]
    return app.api_route(route.template, methods=[method], operation_id=name, **described)


def describe_data_plane(app: FastAPI) -> None:
    """Register each operation of the data plane, which answers it, for its description alone."""
    for row in DATA_PLANE:
        extra = {"parameters": list(row.parameters)} | ({"requestBody": row.request} if row.request else {})
        describe = operation(
            app,
            row.name,
            tags=[row.tag],
            summary=row.summary,
            description=row.description,
            status_code=row.status,
            response_model=row.answer,
            response_class=Response if row.answer is None else JSONResponse,
            responses={**row.answers, **problem_responses((*EVERYWHERE, "unauthorized", "invalid_field", *row.codes))},
            openapi_extra=extra,
        )
        describe(_answer_without_body() if row.body is None else _answer_of(row.body))


def _answer_without_body() -> Callable[[], None]:
    def answer() -> None:
        raise AssertionError("answered by the data plane")

    return answer


def _answer_of(model: type[BaseModel]) -> Callable[[Any], None]:
    def answer(body: Any) -> None:
        raise AssertionError("answered by the data plane")

    answer.__annotations__["body"] = model
    return answer


def page_operation(
    app: FastAPI, name: str, summary: str, *media_types: str, codes: tuple[Code, ...] = ()
) -> Callable[[Endpoint], Endpoint]:
    """As `operation`, for a file of one of the types, which is 304 where the caller has it already.

    It may be refused with `codes`, and for a malformed If-None-Match.
    """
    kept = {
        "ETag": header("Names the file as it is in this version of the service."),
        "Cache-Control": header("no-cache: ask again each time, with If-None-Match."),
    }
    content = {media_type: {"schema": {"type": "string"}} for media_type in media_types}
    return operation(
        app,
        name,
        tags=["pages"],
        summary=summary,
        response_class=Response,
        openapi_extra={"parameters": [IF_CHANGED]},
        responses={
            200: {"description": "The file", "headers": kept, "content": content},
            304: {"description": "It has one of the ETags of If-None-Match", "headers": kept},
            **problem_responses(("invalid_field", *codes)),
        },
    )


def by_status(codes: Iterable[Code]) -> Iterator[tuple[int, Code]]:
    """Each of `codes` with its status, the lowest first; codes of a status in the order of the catalogue."""
    wanted = set(codes)
    rows = ((row.status, code) for code, row in CATALOGUE.items() if code in wanted)
    return iter(sorted(rows, key=lambda row: row[0]))


def problem_responses(codes: Iterable[Code]) -> dict[int | str, dict[str, Any]]:
    """OpenAPI's responses for the statuses of `codes`, each with an example of every code."""
    found: dict[int | str, dict[str, Any]] = {}
    for status, code in by_status(codes):
        response = found.setdefault(
            status,
            {
                "description": f"{REASONS[status]}:",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        )
        response["description"] += f" `{code}`"
        if status in _HEADERS:
            response["headers"] = _HEADERS[status]
        content = response["content"]["application/problem+json"]
        content.setdefault("examples", {})[code] = {"$ref": f"#/components/examples/{code}"}
    return found


def protocol_operation(
    app: FastAPI,
    name: str,
    summary: str,
    *codes: Code,
    answers: Mapping[int | str, dict[str, Any]] = MappingProxyType({}),
    **described: Any,
) -> Callable[[Endpoint], Endpoint]:
    """As `operation`, for one of the inference protocol that may be refused with `codes`, and with others anyway.

    `answers` are those that are no errors, by status, where there is more to say of them than their model.
    """
    found: dict[int | str, dict[str, Any]] = dict(answers)
    keys: tuple[Code, ...] = () if OPERATIONS[name][1].access is Access.PUBLIC else ("unauthorized",)
    for status, code in by_status((*codes, *EVERYWHERE, *keys)):
        response = found.setdefault(status, {"model": ProtocolError, "description": f"{REASONS[status]}:"})
        response["description"] += f" `{code}`"
        if status in _HEADERS:
            response["headers"] = _HEADERS[status]
    return operation(app, name, tags=["inference protocol"], summary=summary, responses=found, **described)


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description of the whole service."""
    document = app.openapi()
    document["paths"] = {route.template: document["paths"][route.template] for route in ROUTES}
    schemas = document["components"]["schemas"]
    if "Problem" not in schemas:
        problem_schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(problem_schema.pop("$defs"))
        schemas["Problem"] = problem_schema
        # FastAPI documents an error shape of its own wherever there is a path parameter; it never occurs here.
        # And `Data` shows the name of a resident tensor as one of its members.
        for name in ("HTTPValidationError", "ValidationError", "NamedTensor"):
            schemas.pop(name, None)
        document["components"]["examples"] = {
            code: {"summary": CATALOGUE[code].title, "value": example_answer(code)} for code in CODES
        }
        document["components"]["securitySchemes"] = {"bearer": _BEARER}
        # Either: whether keys are asked for is up to the operator of the service. Said once for all operations, since
        # generators take a requirement at an operation for one without exception and want a key for every call.
        document["security"] = [{}, {"bearer": []}]
        unauthorized = problem_responses(("unauthorized",))[401]
        for operations in document["paths"].values():
            for operation in operations.values():
                responses = operation["responses"]
                if "HTTPValidationError" in str(responses.get("422")):
                    del responses["422"]
                if OPERATIONS[operation["operationId"]][1].access is Access.PUBLIC:
                    operation["security"] = []
                else:
                    responses.setdefault("401", unauthorized)
    return document
