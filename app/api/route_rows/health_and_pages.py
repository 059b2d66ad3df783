"""The routes for health checks, metrics and pages; `app.api.routes.health_and_pages` handles them."""

from __future__ import annotations

from typing import Any, Final

from app.api.route_rows.operation import CONTROL, Operation, Route, header, in_path
from app.api.route_rows.tensors import IF_CHANGED
from app.api.schemas.answers import Live, Ready
from app.security.authorizer import Access

_TEXT: Final = {"schema": {"type": "string"}}
_KEPT: Final = {
    "ETag": header("Identifies the content of the file."),
    "Cache-Control": header("no-cache: revalidate each time with If-None-Match."),
}


def _health(path: str, name: str, summary: str, **described: Any) -> Route:
    return Route(path, CONTROL, Access.PUBLIC, {"GET": Operation(name, summary, tag="health", **described)})


def _page(path: str, name: str, summary: str, *media_types: str, segment: str | None = None) -> Route:
    """Return the route for a page, which responds with one of the media types or with 304.

    `segment` describes the last segment of the path.
    """
    named = () if segment is None else (in_path(path.rpartition("{")[2].rstrip("}"), segment),)
    found = Operation(
        name,
        summary,
        ("invalid_field", "not_found") if named else ("invalid_field",),
        (*named, IF_CHANGED),
        answers={
            200: {"description": "The file", "headers": _KEPT, "content": dict.fromkeys(media_types, _TEXT)},
            304: {"description": "The ETag matches If-None-Match", "headers": _KEPT},
        },
        tag="pages",
    )
    return Route(path, CONTROL, Access.PUBLIC, {"GET": found})


_METRICS: Final = {200: {"description": "The metrics", "content": {"text/plain": _TEXT}}}
_DESCRIPTION: Final = Operation("openapi", "This description", answer=dict[str, Any], tag="pages")
_SCRIPT_OR_STYLE: Final = ("text/javascript", "text/css")
HEALTH_AND_PAGES: Final = (
    _health("/livez", "livez", "Whether the process is alive", answer=Live)._replace(health="alive"),
    _health("/readyz", "readyz", "Whether the service accepts requests", answer=Ready)._replace(health="ready"),
    _health("/metrics", "metrics", "Metrics in the Prometheus text format", answers=_METRICS)._replace(
        access=Access.ANY_KEY, health="alive"
    ),
    # This is public because the page at /docs needs it. The page at / asks the user for a key.
    Route("/openapi.json", CONTROL, Access.PUBLIC, {"GET": _DESCRIPTION}),
    _page("/", "frontPage", "Front page, with a playground", "text/html"),
    _page(
        "/assets/{asset}",
        "pageAsset",
        "Script, style or icon of a page",
        *_SCRIPT_OR_STYLE,
        "image/svg+xml",
        segment="Name of the file.",
    ),
    _page("/favicon.ico", "favicon", "The icon that browsers request automatically", "image/svg+xml"),
    _page("/docs", "docs", "Interactive page", "text/html"),
    _page(
        "/docs/{asset}",
        "docsAsset",
        "Script or style of the interactive page",
        *_SCRIPT_OR_STYLE,
        segment="Name of the file.",
    ),
    _page("/errors", "errors", "List of all errors", "text/html"),
    _page("/errors/{code}", "errorPage", "What an error means and how to resolve it", "text/html", segment="The code."),
)
