"""The routes of health checks, metrics and pages; `app.api.routes.health`, `pages` and `error_pages` answer them."""

from __future__ import annotations

from typing import Any, Final

from app.api.route_rows.operation import CONTROL, Operation, Route, header, in_path
from app.api.route_rows.tensors import IF_CHANGED
from app.api.schemas.gather_answer import Live, Ready
from app.security.authorizer import Access

_TEXT: Final = {"schema": {"type": "string"}}
_KEPT: Final = {
    "ETag": header("Names the file as it is in this version of the service."),
    "Cache-Control": header("no-cache: ask again each time, with If-None-Match."),
}
_STYLE_AND_SCRIPT: Final = ("text/javascript", "text/css")


def _page(path: str, name: str, summary: str, *media_types: str, segment: str | None = None) -> Route:
    """A file of one of the types, 304 if the caller has it already; `segment` is what the path's last one names."""
    found = Operation(
        name,
        summary,
        ("invalid_field",) if segment is None else ("invalid_field", "not_found"),
        (IF_CHANGED,) if segment is None else (in_path(path.rpartition("{")[2].rstrip("}"), segment), IF_CHANGED),
        answers={
            200: {
                "description": "The file",
                "headers": _KEPT,
                "content": dict.fromkeys(media_types, _TEXT),
            },
            304: {"description": "It has one of the ETags of If-None-Match", "headers": _KEPT},
        },
        tag="pages",
    )
    return Route(path, CONTROL, Access.PUBLIC, {"GET": found})


HEALTH_AND_PAGES: Final = (
    Route(
        "/livez",
        CONTROL,
        Access.PUBLIC,
        {"GET": Operation("livez", "Whether the process is alive", answer=Live, tag="health")},
        health="alive",
    ),
    Route(
        "/readyz",
        CONTROL,
        Access.PUBLIC,
        {"GET": Operation("readyz", "Whether requests should be sent here", answer=Ready, tag="health")},
        health="ready",
    ),
    Route(
        "/metrics",
        CONTROL,
        Access.ANY_KEY,
        {
            "GET": Operation(
                "metrics",
                "Metrics in Prometheus' text form",
                answers={200: {"description": "The metrics", "content": {"text/plain": _TEXT}}},
                tag="health",
            )
        },
        health="alive",
    ),
    # Public: the page at /docs shows nothing without it. The page at / asks its reader for a key.
    Route(
        "/openapi.json",
        CONTROL,
        Access.PUBLIC,
        {"GET": Operation("openapi", "This description", answer=dict[str, Any], tag="pages")},
    ),
    _page("/", "frontPage", "Front page, with a playground", "text/html"),
    _page(
        "/assets/{asset}",
        "pageAsset",
        "Script, style or icon of a page",
        *_STYLE_AND_SCRIPT,
        "image/svg+xml",
        segment="Name of the file.",
    ),
    _page("/favicon.ico", "favicon", "The icon that browsers ask for by themselves", "image/svg+xml"),
    _page("/docs", "docs", "Interactive page", "text/html"),
    _page(
        "/docs/{asset}",
        "docsAsset",
        "Script or style of the interactive page",
        *_STYLE_AND_SCRIPT,
        segment="Name of the file.",
    ),
    _page("/errors", "errors", "Every error", "text/html"),
    _page("/errors/{code}", "errorPage", "What an error means and how to mend it", "text/html", segment="The code."),
)
