"""The pages for people: front page, interactive page, errors; and the OpenAPI file."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse

from app import __version__
from app.api.error_responses import STATUS
from app.api.openapi_document import openapi_document, operation, problem_responses
from app.errors import CATALOGUE, Code, GatherError
from app.operators.registry import OPERATORS
from app.surrogate_safe_json import dump

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 3rem auto; padding: 0 1rem; }
code, pre { font: 14px/1.5 ui-monospace, monospace; }
pre { padding: 1rem; overflow-x: auto; border: 1px solid #8884; border-radius: 6px; }
table { border-collapse: collapse; } td, th { text-align: left; padding: .25rem 1rem .25rem 0; }
"""
_FIRST_CURL = """curl -s http://127.0.0.1:8080/gathernd -H 'Content-Type: application/json' -d '{
  "data":    {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
  "indices": {"dtype": "int64",   "shape": [2, 2], "values": [0, 0, 1, 1]}}'"""


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>{body}</body></html>'
    )


def front_page() -> str:
    """The page at /."""
    return _page(
        "gathernd",
        f"<h1>gathernd {escape(__version__)}</h1>"
        f"<p>A gather inference service: {', '.join(text for row in OPERATORS.values() for text in row.texts)}.</p>"
        f"<pre>{escape(_FIRST_CURL)}</pre>"
        '<ul><li><a href="docs">Try the API</a></li><li><a href="openapi.json">OpenAPI file</a></li>'
        '<li><a href="errors">Errors</a></li><li><a href="metrics">Metrics</a></li></ul>',
    )


def catalogue_page() -> str:
    """The page at /errors: every code with its status."""
    rows = "".join(
        f'<tr><td><a href="/errors/{code}"><code>{code}</code></a></td><td>{STATUS[code]}</td>'
        f"<td>{escape(entry.title)}</td></tr>"
        for code, entry in CATALOGUE.items()
    )
    return _page("Errors", f"<h1>Errors</h1><table><tr><th>code<th>status<th>title</tr>{rows}</table>")


def error_page(code: Code) -> str:
    """The page at /errors/{code}: what it means, an example, how to mend it."""
    entry = CATALOGUE[code]
    return _page(
        entry.title,
        f"<h1>{escape(entry.title)}</h1><p><code>{code}</code>, status {STATUS[code]}</p>"
        f"<p>{escape(entry.meaning)}</p><h2>Example</h2><pre>{escape(entry.example)}</pre>"
        f'<h2>How to mend it</h2><p>{escape(entry.mend)}</p><p><a href="/errors">All errors</a></p>',
    )


def add_page_routes(app: FastAPI) -> None:
    """Add the front page, the interactive page with its files, the OpenAPI file and the pages of errors."""
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
