"""The web pages, and their files.

The page at / is `app/api/web/index.html` with this service's features written into it; the page at /docs is Swagger UI.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Container
from dataclasses import asdict
from functools import cache
from html import escape
from importlib.resources import files
from math import inf
from typing import Any, Final

from app import __version__
from app.api.asgi_request import RequestContext
from app.api.error_responses import JSON
from app.api.static_files import StaticFile
from app.errors import GatherError
from app.operators.backward_plan import FLOAT_TYPES
from app.operators.dialects import Dialect
from app.operators.lookup_plan import INDEX_DTYPES
from app.operators.registry import GRADIENTS, OPERATORS
from app.surrogate_safe_json import dump
from app.tensors import float_rounding
from app.tensors.dtypes import DTYPES, DType
from app.tensors.lookup_call import POOLINGS
from app.tensors.operator_signature import DialectFields, Signature

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
    """Describe a type: its name, Python's name if NumPy lacks the type, and the bit layout of narrow floats."""
    python = f"ml_dtypes.{dtype.name}" if dtype.kind == "float" and dtype.npy is None else None
    found: dict[str, Any] = {"name": dtype.name, "python": python, "bits": None}
    if dtype.kind == "float" and dtype.item_size <= 2:
        found["bits"] = {
            "bytes": dtype.item_size,
            "fraction": float_rounding.fraction_bits(dtype),
            "bias": float_rounding.exponent_bias(dtype),
            "signed": float_rounding.is_signed(dtype),
            "largest": float_rounding.bits_of(dtype, float_rounding.largest(dtype)),
            "zero": float_rounding.has_zero(dtype),
            "infinity": float_rounding.bits_of(dtype, inf) if float_rounding.has_infinity(dtype) else None,
        }
    return found


def _parameter(signature: Signature) -> str | None:
    """Return the name of the parameter that the page offers, if any."""
    return signature.parameters[0].name if signature.parameters else None


def service_description() -> dict[str, Any]:
    """Return the page's data: operators, their dialects and the element types."""
    return {
        "operators": [
            {
                "name": row.name,
                "title": row.summary,
                "kind": row.signature.kind,
                "parameter": _parameter(row.signature),
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
                    "parameter": _parameter(row.signature),
                    "dialects": [_dialect(each) for each in row.dialects.values()],
                }
                for row in GRADIENTS.values()
            ],
            "dtypes": [name for name in DTYPES if name in FLOAT_TYPES],
        },
    }


def front_page() -> str:
    """Return the HTML of the page."""
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
    await _send_named(context, _ASSETS, _web_file)


async def send_favicon(context: RequestContext) -> None:
    """`GET /favicon.ico`."""
    await _web_file("favicon.svg").send(context)


async def send_docs(context: RequestContext) -> None:
    """`GET /docs`."""
    await _web_file("docs.html").send(context)


async def send_docs_asset(context: RequestContext) -> None:
    """`GET /docs/{asset}`."""
    await _send_named(context, _SWAGGER, _swagger_file)


async def _send_named(context: RequestContext, names: Container[str], read: Callable[[str], StaticFile]) -> None:
    """Answer with the file that the path names. Raises not_found if it is not in `names`."""
    (name,) = context.parameters
    if name not in names:
        raise GatherError("not_found", f"no file of the pages is named {name!r}")
    await (await asyncio.to_thread(read, name)).send(context)


async def send_openapi(context: RequestContext) -> None:
    """`GET /openapi.json`."""
    await context.send(200, JSON, await asyncio.to_thread(_openapi_text))
