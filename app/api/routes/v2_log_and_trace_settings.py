"""The inference protocol's log and trace settings: they can be read; changing them is answered 501 with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import Depends, FastAPI

from app.api.openapi_document import OF_MODEL, protocol_operation
from app.api.v2_model_lookup import Models
from app.errors import Code, GatherError

_TRACING: Final = {
    "trace_level": ["OFF"],
    "trace_rate": "0",
    "trace_count": "0",
    "log_frequency": "0",
    "trace_file": "",
}


def add_log_and_trace_settings_routes(app: FastAPI, models: Models, log_level: str) -> None:
    """Add the routes of log and trace settings."""

    async def check_model(name: str) -> None:
        models.find(name)

    logging = {
        "log_file": "",
        "log_info": log_level in ("debug", "info"),
        "log_warning": log_level != "error",
        "log_error": True,
        "log_verbose_level": int(log_level == "debug"),
        "log_format": "default",
    }
    _add_settings(app, "LogSettings", logging)
    _add_settings(app, "TraceSettings", _TRACING)
    _add_settings(app, "ModelTraceSettings", _TRACING, *OF_MODEL, dependencies=[Depends(check_model)])


def _add_settings(
    app: FastAPI, name: str, settings: dict[str, Any], *codes: Code, dependencies: Sequence[Any] = ()
) -> None:
    @protocol_operation(app, f"get{name}", "The settings as they are", *codes, dependencies=dependencies)
    async def get() -> dict[str, Any]:
        return settings

    text = "Not offered: an operator sets them when the service starts"

    @protocol_operation(app, f"update{name}", text, "not_implemented", *codes, dependencies=dependencies)
    async def update() -> dict[str, Any]:
        raise GatherError("not_implemented", "log and trace settings are the operator's, set at start-up")
