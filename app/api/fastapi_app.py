"""The control plane: FastAPI with the documentation, health, metrics and error pages.

The routes of the gathers stand here for OpenAPI's sake; the data plane in front answers them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final, NoReturn

from fastapi import FastAPI, Request, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse, PlainTextResponse

from app import __version__
from app.api.asgi_request import RequestContext
from app.api.error_responses import STATUS, error_body, problem_headers
from app.api.openapi_document import openapi_document, operation, problem_responses
from app.api.routes.health import Readiness
from app.api.schemas import binary_formats, examples
from app.api.schemas.gather_request import REQUEST_MODELS, GatherAnswer, Live, Ready
from app.api.web.pages import catalogue_page, error_page, front_page
from app.errors import CATALOGUE, CODES, Code, GatherError
from app.operators.registry import OPERATORS, Operator
from app.orjson_dump import dump
from app.telemetry.request_metrics import Metrics

_EVERYWHERE: Final[tuple[Code, ...]] = (
    "malformed_request", "forbidden", "request_timeout", "header_too_large", "internal",
)  # fmt: skip
_GATHER: Final[tuple[Code, ...]] = (
    *_EVERYWHERE, "unauthorized", "tensor_not_found", "payload_too_large", "unsupported_media_type", "invalid_field",
    "unsupported_dtype", "value_not_representable", "element_count_mismatch", "output_too_large", "limit_exceeded",
    "device_unavailable", "overloaded", "not_ready", "deadline_exceeded", "tensor_damaged",
)  # fmt: skip
# ONNX's texts first, as most callers come from there.
_TEXTS: Final = sorted((text for row in OPERATORS.values() for text in row.texts), key=lambda text: text[:4] != "ONNX")
_DESCRIPTION: Final = (
    f"Gathers slices of a tensor by index, exactly as {', '.join(_TEXTS[:-1])} and {_TEXTS[-1]} say, or answers with "
    "an error that names the broken rule and the place that broke it."
)


def _operator_extra(operator: Operator) -> dict[str, Any]:
    shown = examples.REQUESTS[operator.name]
    requests = {name: {"summary": text, "value": body} for name, (text, body, _) in shown.items()}
    return {
        "parameters": binary_formats.request_parameters(operator.signature, REQUEST_MODELS[operator.name]),
        "requestBody": {"content": {"application/json": {"examples": requests}} | binary_formats.request_content()},
    }


def _operator_responses(operator: Operator) -> dict[int | str, dict[str, Any]]:
    shown = examples.REQUESTS[operator.name]
    answers = {name: {"summary": text, "value": answer} for name, (text, _, answer) in shown.items()}
    ok: dict[int | str, dict[str, Any]] = {
        200: {
            "description": "The gathered tensor",
            "headers": binary_formats.answer_headers(),
            "content": {"application/json": {"examples": answers}} | binary_formats.answer_content(),
        }
    }
    return ok | problem_responses(code for code in CODES if code in {*_GATHER, *operator.codes})


def create_control(readiness: Readiness, metrics: Metrics, lifespan: Any, *parts: Callable[[FastAPI], None]) -> FastAPI:
    """The FastAPI application behind the data plane; each of `parts` adds its routes to it."""
    app = FastAPI(
        title="gathernd",
        version=__version__,
        description=_DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        separate_input_output_schemas=False,
        responses=problem_responses(_EVERYWHERE),
    )
    # No others: the data plane has checked path and method, and no route here has parameters that could be invalid.
    app.exception_handlers = {
        GatherError: _gather_error,
        Exception: _failure,
    }
    for operator in OPERATORS.values():
        _add_operator(app, operator)
    _add_health(app, readiness, metrics)
    _add_pages(app)
    for part in parts:
        part(app)
    return app


def _add_operator(app: FastAPI, operator: Operator) -> None:
    def answer(body: Any) -> NoReturn:
        raise AssertionError("answered by the data plane")

    answer.__annotations__["body"] = REQUEST_MODELS[operator.name]
    register = operation(
        app,
        operator.name,
        tags=["gather"],
        summary=operator.summary,
        response_model=GatherAnswer,
        responses=_operator_responses(operator),
        openapi_extra=_operator_extra(operator),
    )
    register(answer)


def _add_health(app: FastAPI, readiness: Readiness, metrics: Metrics) -> None:
    @operation(app, "livez", tags=["health"], summary="Whether the process is alive")
    async def livez() -> Live:
        return Live(status="live")

    @operation(
        app,
        "readyz",
        tags=["health"],
        summary="Whether requests should be sent here",
        responses=problem_responses(("not_ready",)),
    )
    async def readyz() -> Ready:
        if not readiness.ready:
            raise readiness.error()
        return Ready(status="ready")

    @operation(
        app,
        "metrics",
        tags=["health"],
        summary="Metrics in Prometheus' text form",
        response_class=PlainTextResponse,
        responses=problem_responses(("unauthorized",)),
    )
    async def metrics_text() -> Response:
        return Response(await metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_pages(app: FastAPI) -> None:
    openapi: dict[str, bytes] = {}
    assets = files("fastapi_swagger") / "resources"
    types = {
        "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
        "swagger-ui.css": "text/css; charset=utf-8",
        "favicon-32x32.png": "image/png",
    }

    @operation(
        app,
        "openapi",
        tags=["pages"],
        summary="This description",
        response_model=dict[str, Any],
    )
    async def openapi_json() -> Response:
        if not openapi:
            openapi["body"] = dump(openapi_document(app))
        return Response(openapi["body"], media_type="application/json")

    @operation(app, "frontPage", tags=["pages"], summary="Front page", response_class=HTMLResponse)
    async def front() -> str:
        return front_page()

    @operation(app, "docs", tags=["pages"], summary="Interactive page", response_class=HTMLResponse)
    async def docs() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="openapi.json",
            title="gathernd API",
            swagger_js_url="docs/swagger-ui-bundle.js",
            swagger_css_url="docs/swagger-ui.css",
            swagger_favicon_url="docs/favicon-32x32.png",
        )

    @operation(
        app,
        "docsAsset",
        tags=["pages"],
        summary="Script, style and icon of the interactive page",
        response_class=Response,
        responses={
            200: {"description": "The file", "content": {"application/octet-stream": {}}},
            **problem_responses(("not_found",)),
        },
    )
    async def docs_asset(asset: str) -> Response:
        if asset not in types:
            raise GatherError("not_found", f"no file of the interactive page is named {asset!r}")
        return Response(
            (assets / asset).read_bytes(), media_type=types[asset], headers={"cache-control": "max-age=86400"}
        )

    @operation(app, "errors", tags=["pages"], summary="Every error", response_class=HTMLResponse)
    async def errors() -> str:
        return catalogue_page()

    @operation(
        app,
        "errorPage",
        tags=["pages"],
        summary="What an error means and how to mend it",
        response_class=HTMLResponse,
        responses=problem_responses(("not_found",)),
    )
    async def error(code: str) -> str:
        for known in CATALOGUE:
            if known == code:
                return error_page(known)
        raise GatherError("not_found", f"no error has the code {code!r}")


def problem_response(error: GatherError, request: Request) -> Response:
    """The error body of `error` as a response of the control plane."""
    headers = {name.decode(): value.decode() for name, value in problem_headers(error)}
    context: RequestContext = request.scope["context"]
    context.code = error.code
    content_type, body = error_body(error, context.request_id, context.path)
    return Response(body, STATUS[error.code], headers, content_type.decode())


async def _gather_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatherError)
    return problem_response(error, request)


async def _failure(request: Request, error: Exception) -> Response:
    """What Starlette would answer in plain text; it raises `error` again afterwards, and the data plane logs it."""
    return problem_response(GatherError("internal", "the service failed; its log has the request_id"), request)
