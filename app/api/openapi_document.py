"""The OpenAPI description, which FastAPI builds from the rows of `app.api.route_rows`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from app import __version__
from app.api.error_responses import example_answer
from app.api.route_rows.inference_protocol import TAG as INFERENCE_PROTOCOL
from app.api.route_rows.operation import CONTROL, Described, Operation, Route
from app.api.route_table import OPERATIONS
from app.api.schemas.answers import Problem
from app.api.schemas.v2_messages import ProtocolError
from app.errors import CATALOGUE, CODES, Code
from app.operators.registry import OPERATORS
from app.security.authorizer import Access

# ONNX comes first, because most callers use it.
_TEXTS: Final = sorted((text for row in OPERATORS.values() for text in row.texts), key=lambda text: text[:4] != "ONNX")
_DESCRIPTION: Final = (
    f"Gathers slices of a tensor by index and scatters updates into one, exactly as {', '.join(_TEXTS[:-1])} and "
    f"{_TEXTS[-1]} say, or returns an error that says which rule was broken, and where.\n\nEvery response has the "
    "header fields `X-Request-ID`, `Server-Timing`, and `X-Content-Type-Options: nosniff`. The service uses the "
    "`X-Request-ID` of the request if it has 1 to 128 letters, digits, `.`, `_` and `-`. A request may say in "
    "`X-Gathernd-Timeout` how many seconds its caller waits. If the work has not begun by then, the service responds "
    "with `deadline_exceeded`."
)
_ABOUT: Final[dict[str, Any]] = {
    "title": "gathernd",
    "version": __version__,
    "description": _DESCRIPTION,
    "license_info": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    "openapi_tags": [
        {"name": "gather", "description": "Gathers, their gradients, and lookups, on inline data or resident tensors"},
        {"name": "scatter", "description": "Scatters into a copy of the data"},
        {"name": "tensors", "description": "Resident tensors, their versions and their aliases"},
        {"name": INFERENCE_PROTOCOL, "description": "Open Inference Protocol v2"},
        {"name": "health", "description": "Health checks and metrics"},
        {"name": "pages", "description": "Web pages"},
    ],
}
"""The description of the service as a whole, as arguments of `FastAPI`."""
_REASONS: Final = {
    400: "The body cannot be read",
    401: "The key is missing or unknown",
    403: "Refused",
    404: "Not found",
    408: "The request did not arrive in time",
    409: "It conflicts with the current state",
    412: "A condition failed",
    413: "The body is too large",
    415: "The media type is not supported",
    416: "The rows are outside the tensor",
    422: "The request breaks a rule",
    431: "The header is too large",
    500: "The service failed",
    501: "Not supported",
    503: "Temporarily unavailable; see Retry-After",
    502: "The source could not be read",
    507: "The store is full",
}
_EVERYWHERE: Final[tuple[Code, ...]] = (
    "malformed_request", "forbidden", "request_timeout", "header_too_large", "internal", "overloaded", "not_ready",
)  # fmt: skip
"""Errors of every operation: any request may exceed the limit on connections, or may be canceled by a shutdown."""
_HEADERS: Final[dict[int, Described]] = {
    401: {"WWW-Authenticate": {"description": "Bearer: a key is required.", "schema": {"type": "string"}}},
    503: {
        "Retry-After": {
            "description": "Seconds to wait before the request is sent again.",
            "schema": {"type": "integer", "minimum": 1},
        }
    },
}
"""The header fields of errors, by status."""
_BEARER: Final = {
    "type": "http",
    "scheme": "bearer",
    "description": "A key of the service, if its operator requires keys. Changes of tensors require a key with the "
    "scope `tensors`, the metrics accept any key, and everything else requires a key with the scope `gather`.",
}


def openapi_document() -> Described:
    """Return the OpenAPI description of the whole service. This takes most of a second."""
    app = FastAPI(**_ABOUT, separate_input_output_schemas=False)
    for method, route in OPERATIONS.values():
        _describe(app, method, route, route.operations[method])
    document = app.openapi()
    schemas = document["components"]["schemas"]
    problem_schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(problem_schema.pop("$defs"))
    schemas["Problem"] = problem_schema
    schemas.pop("NamedTensor")  # `Data` already includes the name of a resident tensor
    document["components"]["examples"] = {
        code: {"summary": CATALOGUE[code].title, "value": example_answer(code)} for code in CODES
    }
    document["components"]["securitySchemes"] = {"bearer": _BEARER}
    # The API key is optional here, because each deployment decides whether keys are required. It is declared once for
    # all operations: if a single operation declared it, code generators would treat it as unconditional and require a
    # key for each call.
    document["security"] = [{}, {"bearer": []}]
    return document


def _describe(app: FastAPI, method: str, route: Route, row: Operation) -> None:
    """Register an operation so that it is described; FastAPI never handles its requests."""
    extra: Described = {"parameters": list(row.parameters)} if row.parameters else {}
    if row.request:
        extra["requestBody"] = row.request
    if route.access is Access.PUBLIC:
        extra["security"] = []
    if not row.is_offered:
        extra["x-not-offered"] = True  # the interactive page leaves it out
    app.add_api_route(
        route.template,
        _endpoint(row.body),
        methods=[method],
        operation_id=row.name,
        tags=[row.tag],
        summary=row.summary,
        description=row.description,
        status_code=row.status,
        response_model=row.answer,
        response_class=Response if row.answer is None else JSONResponse,
        responses={**row.answers, **_error_answers(route, row)},
        openapi_extra=extra,
    )


def _endpoint(model: type[BaseModel] | None) -> Callable[..., None]:
    """Return a function that takes `model` as its body."""

    def without_body() -> None:
        raise AssertionError("FastAPI only describes it")

    def with_body(body: Any) -> None:
        raise AssertionError("FastAPI only describes it")

    if model is None:
        return without_body
    with_body.__annotations__["body"] = model
    return with_body


def _error_answers(route: Route, row: Operation) -> dict[int | str, Described]:
    """Return the error responses of an operation by status, lowest first, each with an example of every code."""
    is_protocol = row.tag == INFERENCE_PROTOCOL
    usual = [*_EVERYWHERE]
    if route.access is not Access.PUBLIC:
        usual.append("unauthorized")
    if route.plane is not CONTROL:
        usual.append("invalid_field")
    found: dict[int | str, Described] = {}
    for status, code in _sort_by_status((*usual, *row.codes)):
        answer = found.get(status)
        if answer is None:
            answer = found[status] = {"description": f"{_REASONS[status]}:"}
            if status in _HEADERS:
                answer["headers"] = _HEADERS[status]
            if is_protocol:
                answer["model"] = ProtocolError
            else:
                schema = {"$ref": "#/components/schemas/Problem"}
                answer["content"] = {"application/problem+json": {"schema": schema, "examples": {}}}
        answer["description"] += f" `{code}`"
        if not is_protocol:
            example = {"$ref": f"#/components/examples/{code}"}
            answer["content"]["application/problem+json"]["examples"][code] = example
    return found


def _sort_by_status(codes: Iterable[Code]) -> list[tuple[int, Code]]:
    """Sort `codes` by status, lowest first, then in the catalogue's order. Returns (status, code) pairs."""
    wanted = set(codes)
    rows = ((row.status, code) for code, row in CATALOGUE.items() if code in wanted)
    return sorted(rows, key=lambda row: row[0])
