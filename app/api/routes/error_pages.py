"""The pages that explain errors: one for each code, and a list of all codes."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any, Final

from app.api.asgi_request import RequestContext
from app.api.error_responses import example_answer
from app.api.page_layout import page
from app.api.static_files import StaticFile
from app.errors import CATALOGUE, CODES, Code, GatherError
from app.near_name import instead_of, near_name
from app.security.host_header_check import split_host

ADDRESS: Final = "http://127.0.0.1:8080"
"""Default address of the service in the examples' commands."""
_CODE: Final = re.compile("`([^`]+)`")
_WIDTH: Final = 100


def _text(text: str) -> str:
    """Convert a text of the catalogue to HTML; text between backticks becomes code."""
    return _CODE.sub(r"<code>\1</code>", escape(text, quote=False))


def _printed(value: Any, indent: str = "") -> str:
    """Format JSON for a page: values that fit are on one line, others have one member per line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= _WIDTH or not value or not isinstance(value, dict | list):
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        members = [f"{json.dumps(name)}: {_printed(member, inner)}" for name, member in value.items()]
    else:
        members = [_printed(item, inner) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(members) + f"\n{indent}{closing}"


def catalogue_page() -> str:
    """Return the page at /errors: every code with its status."""
    rows = "".join(
        f'<tr><td><a href="errors/{code}"><code>{code.replace("_", "_<wbr>")}</code></a></td><td>{entry.status}</td>'
        f"<td>{escape(entry.title)}</td></tr>"
        for code, entry in CATALOGUE.items()
    )
    return page(
        "Errors",
        "<h1>Errors</h1><p>Each error has one of these codes, the place in the request, and a <code>hint</code>: one "
        "sentence on how to mend that request.</p>"
        f"<table><thead><tr><th>code</th><th>status</th><th>title</th></tr></thead><tbody>{rows}</tbody></table>",
        "./",
    )


def error_page(code: Code, address: str = ADDRESS) -> str:
    """Return the page at /errors/{code}: meaning, fix, and an example request to `address` with its full answer."""
    entry, example = CATALOGUE[code], CATALOGUE[code].example
    command = example.command.replace(ADDRESS, address)
    about = f"<p>{_text(example.about)}</p>" if example.about else ""
    return page(
        entry.title,
        f"<h1>{escape(entry.title)}</h1><p><code>{code}</code>, status {entry.status}</p>"
        f"<p>{_text(entry.meaning)}</p><h2>How to mend it</h2><p>{_text(entry.mend)}</p>"
        f"<h2>A request that gets it</h2>{about}<pre><code>{escape(command, quote=False)}</code></pre>"
        f"<h2>Its answer</h2><pre><code>{escape(_printed(example_answer(code)), quote=False)}</code></pre>"
        '<p><a href="../errors">All errors</a></p>',
        "../",
    )


def _address(context: RequestContext) -> str:
    """Return the address that the reader used, or the default if Host is unusual and may be unsafe in a shell."""
    host = context.headers.get(b"host", b"").decode("latin-1")
    return ADDRESS if split_host(host) is None else f"{context.scope['scheme']}://{host}"


async def send_catalogue(context: RequestContext) -> None:
    """`GET /errors`."""
    await StaticFile.of(catalogue_page().encode(), "errors.html").send(context)


async def send_error_page(context: RequestContext) -> None:
    """`GET /errors/{code}`."""
    (code,) = context.parameters
    for known in CODES:
        if known == code:
            await StaticFile.of(error_page(known, _address(context)).encode(), f"{known}.html").send(context)
            return
    near = near_name(code, CODES)
    hint = None if near is None else f"{instead_of(code, near)}."
    raise GatherError("not_found", f"no error has the code {code!r}", hint=hint)
