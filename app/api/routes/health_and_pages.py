"""Handlers for liveness, readiness, metrics, other constant responses, and the web pages with their files.

The page at / is `app/api/web/index.html` with this service's features written into it; the page at /docs is Swagger UI.
The pages below /errors explain the errors: one for each code, and a list of all codes.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from math import inf
from pathlib import PurePath
from typing import Any, Final, NamedTuple, Self

import orjson

from app import __version__
from app.api.asgi_request import Handler, RequestContext
from app.api.conditional_requests import etag_field, read_conditions
from app.api.error_responses import JSON, example_answer
from app.api.page_layout import PAGE_FIELDS, page
from app.errors import CATALOGUE, CODES, Code, GatherError
from app.near_name import near_name, replacement_text
from app.operators.backward_plan import FLOAT_TYPES
from app.operators.dialects import Dialect
from app.operators.lookup_plan import INDEX_DTYPES
from app.operators.registry import GRADIENTS, OPERATORS
from app.security.host_header_check import split_host
from app.server.readiness import Readiness
from app.surrogate_safe_json import dump
from app.telemetry.request_metrics import Metrics
from app.tensors import float_rounding
from app.tensors.dtypes import DTYPES, DType
from app.tensors.lookup_call import POOLINGS
from app.tensors.operator_signature import DialectFields, Signature

_PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"


def answer_with(body: dict[str, Any], readiness: Readiness | None = None) -> Handler:
    """Return a handler that always responds with `body`; with `readiness`, it raises not_ready until the service is
    ready.
    """
    text = orjson.dumps(body)

    async def answer(context: RequestContext) -> None:
        if readiness is not None:
            readiness.check()
        await context.send(200, JSON, text)

    return answer


def write_metrics(metrics: Metrics) -> Handler:
    """`GET /metrics`."""

    async def answer(context: RequestContext) -> None:
        await context.send(200, _PROMETHEUS, await metrics.text())

    return answer


_TYPES: Final[Mapping[str, bytes]] = {
    ".css": b"text/css; charset=utf-8",
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".png": b"image/png",
    ".svg": b"image/svg+xml",
}


class StaticFile(NamedTuple):
    """A file and its header fields."""

    body: bytes
    media_type: bytes
    etag: str

    @classmethod
    def of(cls, body: bytes, name: str) -> Self:
        """Return a file that contains `body`; the suffix of `name` determines its media type."""
        return cls(body, _TYPES[PurePath(name).suffix], f'"{sha256(body).hexdigest()[:32]}"')

    async def send(self, context: RequestContext) -> None:
        """Respond with the file, or with 304 if the request's If-None-Match contains its ETag. Raises invalid_field.

        Browsers cache the file and revalidate it each time, so an upgrade takes effect immediately.
        """
        fields = (etag_field(self.etag), (b"cache-control", b"no-cache"), *PAGE_FIELDS)
        none_match = read_conditions(context.headers).none_match
        if none_match is not None and (self.etag in none_match or none_match == ("*",)):
            await context.send_empty(304, *fields)
        else:
            await context.send(200, self.media_type, self.body, *fields)


WEB: Final = files("app.api") / "web"
_ASSETS: Final = frozenset(file.name for file in WEB.iterdir() if not file.name.endswith(".html"))
_SWAGGER: Final = ("swagger-ui-bundle.js", "swagger-ui.css")


def _dialect(dialect: Dialect) -> dict[str, Any]:
    return {
        "name": dialect.name,
        "index_dtypes": [name for name in DTYPES if name in dialect.index_dtypes],
        "wraps": dialect.wrap,
        **asdict(dialect.fields or DialectFields()),
        "reductions": dialect.reductions,
    }


def _element_type(dtype: DType) -> dict[str, Any]:
    """Describe a type: its name, its name in Python if NumPy lacks the type, and the bit layout of narrow floats."""
    python = f"ml_dtypes.{dtype.name}" if dtype.kind == "float" and dtype.npy is None else None
    found: dict[str, Any] = {"name": dtype.name, "python": python, "bits": None}
    if dtype.kind == "float" and dtype.item_size <= 2:
        found["bits"] = {
            "bytes": dtype.item_size,
            "fraction": float_rounding.fraction_bits(dtype),
            "bias": float_rounding.exponent_bias(dtype),
            "signed": float_rounding.is_signed(dtype),
            "largest": float_rounding.bits_of(dtype, float_rounding.largest_finite(dtype)),
            "zero": float_rounding.has_zero(dtype),
            "infinity": float_rounding.bits_of(dtype, inf) if float_rounding.has_infinity(dtype) else None,
        }
    return found


def _parameter_name(signature: Signature) -> str | None:
    """Return the name of the parameter that the page offers, if any."""
    return signature.parameters[0].name if signature.parameters else None


def service_description() -> dict[str, Any]:
    """Return the data for the front page: operators, their dialects and the element types."""
    return {
        "operators": [
            {
                "name": row.name,
                "title": row.summary,
                "kind": row.signature.kind,
                "parameter": _parameter_name(row.signature),
                "dialects": [_dialect(each) for each in row.dialects.values()],
            }
            for row in OPERATORS.values()
            if row.typed_by == "data"
        ],
        "dtypes": [_element_type(row) for row in DTYPES.values()],
        "lookup": {"index_dtypes": sorted(INDEX_DTYPES, reverse=True), "poolings": POOLINGS},
        "backward": {
            "operators": [
                {
                    "name": row.gather,
                    "parameter": _parameter_name(row.signature),
                    "dialects": [_dialect(each) for each in row.dialects.values()],
                }
                for row in GRADIENTS.values()
            ],
            "dtypes": [name for name in DTYPES if name in FLOAT_TYPES],
        },
    }


def front_page() -> str:
    """Return the HTML of the front page."""
    # In a script element, only "<" can start markup; JSON can escape it.
    description = json.dumps(service_description(), separators=(",", ":")).replace("<", "\\u003c")
    return (
        (WEB / "index.html")
        .read_text(encoding="utf-8")
        .replace("{{version}}", escape(__version__))
        .replace("{{service}}", description)
    )


@cache
def _front_file() -> StaticFile:
    return StaticFile.of(front_page().encode(), "index.html")


@cache
def _web_file(name: str) -> StaticFile:
    return StaticFile.of((WEB / name).read_bytes(), name)


@cache
def _swagger_file(name: str) -> StaticFile:
    return StaticFile.of((files("fastapi_swagger") / "resources" / name).read_bytes(), name)


@cache
def _openapi_text() -> bytes:
    from app.api.openapi_document import openapi_document  # noqa: PLC0415  (FastAPI is needed for nothing else)

    return dump(openapi_document())


async def send_front_page(context: RequestContext) -> None:
    """`GET /`."""
    await _front_file().send(context)


async def send_asset(context: RequestContext) -> None:
    """`GET /assets/{asset}`."""
    await _send_file_in_path(context, _ASSETS, _web_file)


async def send_favicon(context: RequestContext) -> None:
    """`GET /favicon.ico`."""
    await _web_file("favicon.svg").send(context)


async def send_docs(context: RequestContext) -> None:
    """`GET /docs`."""
    await _web_file("docs.html").send(context)


async def send_docs_asset(context: RequestContext) -> None:
    """`GET /docs/{asset}`."""
    await _send_file_in_path(context, _SWAGGER, _swagger_file)


async def _send_file_in_path(context: RequestContext, names: Container[str], read: Callable[[str], StaticFile]) -> None:
    """Respond with the file whose name is in the path. Raises not_found if that name is not in `names`."""
    (name,) = context.parameters
    if name not in names:
        raise GatherError("not_found", f"no file of the pages is named {name!r}")
    await (await asyncio.to_thread(read, name)).send(context)


async def send_openapi(context: RequestContext) -> None:
    """`GET /openapi.json`."""
    await context.send(200, JSON, await asyncio.to_thread(_openapi_text))


ADDRESS: Final = "http://127.0.0.1:8080"
"""Default address of the service in the examples' commands."""
_CODE: Final = re.compile("`([^`]+)`")
_WIDTH: Final = 100


def _html_of_text(text: str) -> str:
    """Convert a text from the error catalogue to HTML; text between backticks becomes code."""
    return _CODE.sub(r"<code>\1</code>", escape(text, quote=False))


def _format_json(value: Any, indent: str = "") -> str:
    """Format JSON for a page: put values that fit on one line, and split others into one member per line."""
    line = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(line) <= _WIDTH or not value or not isinstance(value, dict | list):
        return line
    inner = indent + "  "
    if isinstance(value, dict):
        members = [f"{json.dumps(name)}: {_format_json(member, inner)}" for name, member in value.items()]
    else:
        members = [_format_json(item, inner) for item in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}" + f",\n{inner}".join(members) + f"\n{indent}{closing}"


def catalogue_page() -> str:
    """Return the page at /errors, which lists every code with its status."""
    rows = "".join(
        f'<tr><td><a href="errors/{code}"><code>{code.replace("_", "_<wbr>")}</code></a></td><td>{entry.status}</td>'
        f"<td>{escape(entry.title)}</td></tr>"
        for code, entry in CATALOGUE.items()
    )
    return page(
        "Errors",
        "<h1>Errors</h1><p>Each error has one of these codes, the place in the request, and a <code>hint</code>: one "
        "sentence on how to fix that request.</p>"
        f"<table><thead><tr><th>code</th><th>status</th><th>title</th></tr></thead><tbody>{rows}</tbody></table>",
        "./",
    )


def error_page(code: Code, address: str = ADDRESS) -> str:
    """Return the page at /errors/{code}: meaning, fix, and an example request to `address` with the full response."""
    entry, example = CATALOGUE[code], CATALOGUE[code].example
    command = example.command.replace(ADDRESS, address)
    about = f"<p>{_html_of_text(example.about)}</p>" if example.about else ""
    return page(
        entry.title,
        f"<h1>{escape(entry.title)}</h1><p><code>{code}</code>, status {entry.status}</p>"
        f"<p>{_html_of_text(entry.meaning)}</p><h2>How to fix it</h2><p>{_html_of_text(entry.fix)}</p>"
        f"<h2>A request that gets it</h2>{about}<pre><code>{escape(command, quote=False)}</code></pre>"
        f"<h2>Its answer</h2><pre><code>{escape(_format_json(example_answer(code)), quote=False)}</code></pre>"
        '<p><a href="../errors">All errors</a></p>',
        "../",
    )


def _service_address(context: RequestContext) -> str:
    """Return the address that the reader used, or the default address if Host is unusual and might be unsafe in a
    shell.
    """
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
            await StaticFile.of(error_page(known, _service_address(context)).encode(), f"{known}.html").send(context)
            return
    near = near_name(code, CODES)
    hint = None if near is None else f"{replacement_text(code, near)}."
    raise GatherError("not_found", f"no error has the code {code!r}", hint=hint)
