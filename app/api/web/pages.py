"""The HTML pages, made once from the catalogue."""

from __future__ import annotations

from html import escape

from app import __version__
from app.api.error_responses import STATUS
from app.errors import CATALOGUE, Code
from app.operators.registry import OPERATORS

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
