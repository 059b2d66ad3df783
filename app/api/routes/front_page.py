"""The page at / and what it loads: `app/api/web/index.html` with what this service offers written into it."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape
from importlib.resources import files
from math import inf
from typing import Any, Final

from fastapi import FastAPI, Request, Response

from app import __version__
from app.api.openapi_document import page_operation
from app.api.static_files import StaticFile, StaticFiles
from app.operators.backward_plan import FLOAT_TYPES
from app.operators.backward_registry import BACKWARDS
from app.operators.dialects import Dialect
from app.operators.lookup import INDEX_DTYPES
from app.operators.registry import OPERATORS
from app.tensors import float_rounding
from app.tensors.backward_call import BackwardSignature
from app.tensors.dtypes import DTYPES, DType
from app.tensors.lookup_call import POOLINGS
from app.tensors.operator_signature import DialectFields, Signature

WEB: Final = files("app.api") / "web"


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


def _parameter(signature: Signature | BackwardSignature) -> str | None:
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
                for row in BACKWARDS.values()
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


def add_front_page_routes(app: FastAPI) -> None:
    """Add the page, its scripts, styles and icon."""
    assets = StaticFiles(file for file in WEB.iterdir() if not file.name.endswith(".html"))
    pages: dict[str, StaticFile] = {}

    @page_operation(app, "frontPage", "Front page, with a playground", "text/html")
    async def front(request: Request) -> Response:
        if not pages:
            pages["front"] = StaticFile.of(front_page().encode(), "index.html")
        return pages["front"].response(request)

    @page_operation(
        app,
        "pageAsset",
        "Script, style or icon of a page",
        "text/javascript",
        "text/css",
        "image/svg+xml",
        codes=("not_found",),
    )
    async def page_asset(asset: str, request: Request) -> Response:
        return assets.response(asset, request)

    @page_operation(app, "favicon", "The icon that browsers ask for by themselves", "image/svg+xml")
    async def favicon(request: Request) -> Response:
        return assets.response("favicon.svg", request)
