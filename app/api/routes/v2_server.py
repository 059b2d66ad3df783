"""What the inference protocol asks of the server as a whole: metadata, health, and log and trace settings.

What the protocol has and this service does not is answered 501, so that a client is told why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import Depends, FastAPI

from app import __version__
from app.api.openapi_document import OF_MODEL, protocol_operation
from app.api.readiness import Readiness
from app.api.route_table import OPERATIONS
from app.api.schemas.v2_messages import ServerLive, ServerMetadata, ServerReady
from app.api.v2_model_lookup import Models
from app.errors import Code, GatherError

EXTENSIONS: Final = (
    "binary_tensor_data", "model_configuration", "model_repository", "model_repository(unload_dependents)",
    "parameters", "statistics",
)  # fmt: skip
_TRACING: Final = {
    "trace_level": ["OFF"],
    "trace_rate": "0",
    "trace_count": "0",
    "log_frequency": "0",
    "trace_file": "",
}


def add_server_routes(app: FastAPI, models: Models, readiness: Readiness, log_level: str) -> None:
    """Add the routes of the server."""

    @protocol_operation(app, "serverMetadata", "Name, version and extensions")
    async def server() -> ServerMetadata:
        return ServerMetadata(name="gathernd", version=__version__, extensions=list(EXTENSIONS))

    @protocol_operation(app, "serverLive", "Whether the process is alive")
    async def live() -> ServerLive:
        return ServerLive(live=True)

    @protocol_operation(app, "serverReady", "Whether requests should be sent here", "not_ready")
    async def ready() -> ServerReady:
        readiness.check()
        return ServerReady(ready=True)

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
    _add_shared_memory(app)


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


def _add_shared_memory(app: FastAPI) -> None:
    for name, (_, route) in OPERATIONS.items():
        if "SharedMemory" in name:
            register = protocol_operation(app, name, "Not offered", "not_implemented")
            register(_no_shared_memory_region if "{region}" in route.template else _no_shared_memory)


async def _no_shared_memory() -> dict[str, Any]:
    raise GatherError("not_implemented", "shared memory is not offered here; send the tensors in the request")


async def _no_shared_memory_region(region: str) -> dict[str, Any]:
    return await _no_shared_memory()
