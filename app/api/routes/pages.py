"""The pages for people, and what they load.

The page at / is `app/api/web/index.html` with what this service offers written into it; the one at /docs is Swagger UI.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from html import escape
from importlib.resources import files
from math import inf
from typing import Any, Final

from app import __version__
from app.api.asgi_request import RequestContext
from app.api.error_responses import JSON
from app.api.static_files import StaticFile, StaticFiles
from app.operators.backward_plan import FLOAT_TYPES
from app.operators.dialects import Dialect
from app.operators.lookup import INDEX_DTYPES
from app.operators.registry import GRADIENTS, OPERATORS
from app.surrogate_safe_json import dump
from app.tensors import float_rounding
from app.tensors.dtypes import DTYPES, DType
from app.tensors.lookup_call import POOLINGS
from app.tensors.operator_signature import DialectFields, Signature

WEB: Final = files("app.api") / "web"
_DOCS: Final = "docs.html"
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
    """A type by its name: what Python calls it if NumPy lacks it, and for narrow floats what their bits mean."""
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
    """The name of the parameter that the page offers."""
    return signature.parameters[0].name if signature.parameters else None


def service_description() -> dict[str, Any]:
    """What the page's scripts know of the service: operators, their dialects and the element types."""
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
    """The HTML of the page."""
    # In a script element only "<" could be taken for markup; JSON may write it as an escape.
    description = json.dumps(service_description(), separators=(",", ":")).replace("<", "\\u003c")
    return (
        (WEB / "index.html")
        .read_text(encoding="utf-8")
        .replace("{{version}}", escape(__version__))
        .replace("{{service}}", description)
    )


class PageRoutes:
    """`/`, `/docs`, `/openapi.json` and the files that pages load."""

    def __init__(self) -> None:
        self._front: StaticFile | None = None
        self._openapi: bytes | None = None
        self._assets = StaticFiles(file for file in WEB.iterdir() if not file.name.endswith(".html"))
        self._docs = StaticFiles([WEB / _DOCS])
        self._swagger: StaticFiles | None = None

    async def front(self, context: RequestContext) -> None:
        """`GET /`."""
        if self._front is None:
            self._front = StaticFile.of(front_page().encode(), "index.html")
        await self._front.send(context)

    async def asset(self, context: RequestContext) -> None:
        """`GET /assets/{asset}`."""
        (name,) = context.parameters
        await self._assets.send(name, context)

    async def favicon(self, context: RequestContext) -> None:
        """`GET /favicon.ico`."""
        await self._assets.send("favicon.svg", context)

    async def docs(self, context: RequestContext) -> None:
        """`GET /docs`."""
        await self._docs.send(_DOCS, context)

    async def docs_asset(self, context: RequestContext) -> None:
        """`GET /docs/{asset}`."""
        (name,) = context.parameters
        if self._swagger is None:
            resources = (await asyncio.to_thread(files, "fastapi_swagger")) / "resources"
            self._swagger = StaticFiles(resources / name for name in _SWAGGER)
        await self._swagger.send(name, context)

    async def openapi(self, context: RequestContext) -> None:
        """`GET /openapi.json`."""
        if self._openapi is None:
            self._openapi = await asyncio.to_thread(_openapi_text)
        await context.send(200, JSON, self._openapi)


def _openapi_text() -> bytes:
    from app.api.openapi_document import openapi_document  # noqa: PLC0415  (FastAPI is needed for nothing else)

    return dump(openapi_document())
