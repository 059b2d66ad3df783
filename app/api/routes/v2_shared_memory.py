"""The inference protocol's shared memory: not offered; answered 501 with the reason."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from app.api.openapi_document import protocol_operation
from app.api.route_table import OPERATIONS
from app.errors import GatherError


def add_shared_memory_routes(app: FastAPI) -> None:
    """Add the routes of system and CUDA shared memory."""
    for name, (_, route) in OPERATIONS.items():
        if "SharedMemory" in name:
            # The interactive page leaves out what has this mark.
            register = protocol_operation(
                app, name, "Not offered", "not_implemented", openapi_extra={"x-not-offered": True}
            )
            register(_no_shared_memory_region if "{region}" in route.template else _no_shared_memory)


async def _no_shared_memory() -> dict[str, Any]:
    raise GatherError("not_implemented", "shared memory is not offered here; send the tensors in the request")


async def _no_shared_memory_region(region: str) -> dict[str, Any]:
    return await _no_shared_memory()
