"""The control plane: the FastAPI application, and its errors in the one shape.

It answers health, metrics, pages and what the inference protocol has beside infer requests. The routes of the data
plane are registered with it too, for OpenAPI's sake alone: the data plane stands in front and answers them.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response

from app.api.asgi_request import RequestContext
from app.api.error_responses import render_error
from app.api.openapi_document import ABOUT, EVERYWHERE, problem_responses
from app.errors import GatherError


def create_control(lifespan: Any) -> FastAPI:
    """The FastAPI application behind the data plane, still without routes."""
    app = FastAPI(
        **ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        separate_input_output_schemas=False,
        responses=problem_responses(EVERYWHERE),
    )
    # No others: the data plane has checked path and method, and no route here has parameters that could be invalid.
    app.exception_handlers = {
        GatherError: _gather_error,
        Exception: _failure,
    }
    return app


def _error_response(error: GatherError, request: Request) -> Response:
    context: RequestContext = request.scope["context"]
    context.code = error.code
    made = render_error(error, context.request_id, context.path, context.headers.get(b"accept", b""))
    headers = {name.decode(): value.decode() for name, value in made.fields}
    return Response(made.body, made.status, headers, made.content_type.decode())


async def _gather_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, GatherError)
    return _error_response(error, request)


async def _failure(request: Request, error: Exception) -> Response:
    """What Starlette would answer in plain text; it raises `error` again afterwards, and the data plane logs it."""
    return _error_response(GatherError("internal", "the service failed; its log has the request_id"), request)
