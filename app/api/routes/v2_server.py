"""What the inference protocol asks of the server as a whole: metadata and health."""

from __future__ import annotations

from typing import Final

from fastapi import FastAPI

from app import __version__
from app.api.openapi_document import protocol_operation
from app.api.readiness import Readiness
from app.api.schemas.v2_messages import ServerLive, ServerMetadata, ServerReady

EXTENSIONS: Final = (
    "binary_tensor_data", "model_configuration", "model_repository", "model_repository(unload_dependents)",
    "parameters", "statistics",
)  # fmt: skip


def add_server_routes(app: FastAPI, readiness: Readiness) -> None:
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
