"""The layout of generated pages, which look like the front page, and the page for an unknown path."""

from __future__ import annotations

from html import escape
from typing import Final

PAGE_FIELDS: Final = (
    (
        b"content-security-policy",
        b"default-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
)
"""Restricts a page to this service's resources and API, and forbids inline scripts."""


def page(title: str, body: str, root: str) -> str:
    """Return a page that looks like the front page; `root` is the URL of the front page."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="{root}assets/favicon.svg"><link rel="stylesheet" href="{root}assets/page.css"></head>'
        f'<body><main class="document"><p><a href="{root}">gathernd</a></p>{body}</main></body></html>'
    )


def not_found_page(path: str, detail: str, hint: str) -> bytes:
    """Return the page that a browser gets for the unknown path `path`."""
    root = "../" * (path.count("/") - 1) or "./"
    links = f'<a href="{root}">the front page</a>, <a href="{root}docs">the documentation</a>'
    text = f"<h1>Not found</h1><p>{escape(detail)}.</p><p>{escape(hint)}</p><p>There are {links}.</p>"
    return page("Not found", text, root).encode("utf-8", "backslashreplace")
