"""The interactive page at /docs, Swagger UI, and the OpenAPI file that it shows."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request, Response

from app.api.openapi_document import openapi_document, operation, page_operation
from app.api.routes.front_page import WEB
from app.api.static_files import StaticFiles
from app.surrogate_safe_json import dump

_PAGE = "docs.html"
_SWAGGER = ("swagger-ui-bundle.js", "swagger-ui.css")


def add_docs_routes(app: FastAPI) -> None:
    """Add the interactive page with its files, and the OpenAPI file."""
    openapi: dict[str, bytes] = {}
    swagger = files("fastapi_swagger") / "resources"
    assets = StaticFiles(swagger / name for name in _SWAGGER)
    pages = StaticFiles([WEB / _PAGE])

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

    @page_operation(app, "docs", "Interactive page", "text/html")
    async def docs(request: Request) -> Response:
        return pages.response(_PAGE, request)

    @page_operation(
        app, "docsAsset", "Script or style of the interactive page", "text/javascript", "text/css", codes=("not_found",)
    )
    async def docs_asset(asset: str, request: Request) -> Response:
        return assets.response(asset, request)
