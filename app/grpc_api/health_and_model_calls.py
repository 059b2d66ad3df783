"""The calls other than infer: health, metadata, configuration, statistics and the model repository.

Their responses contain the same data as those of `app.api.routes` over REST.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from google.protobuf import json_format

from app.api.routes.v2_models import (
    ENTRY_BYTES,
    METADATA,
    STATISTICS_BYTES,
    charged_writer,
    repository_index,
    statistics_of,
    statistics_of_all,
)
from app.api.v2_model_lookup import Models, model_config, model_metadata
from app.errors import GatherError
from app.formats.grpc.message_fields import malformed
from app.formats.grpc.messages.classes import POOL, message_class
from app.grpc_api.rpc_table import RPCS, SERVICE, Rpc
from app.memory.budget import Memory
from app.server.readiness import Readiness

CallHandler = Callable[[Any, Memory], Awaitable[dict[str, Any]]]
"""A function that takes a request's message and memory.

It returns the members of the response under the same names as in JSON.
"""
LONG: Final = ("ModelStatistics", "RepositoryIndex")
"""Calls whose responses list every model, and are therefore written in a thread."""
_HEALTH_SERVICES: Final = ("", SERVICE)
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3


def call_handlers(models: Models, readiness: Readiness) -> Mapping[str, CallHandler]:
    """Return the handlers of the calls by method name."""

    async def server_live(_: Any, __: Memory) -> dict[str, Any]:
        return {"live": True}

    async def server_ready(_: Any, __: Memory) -> dict[str, Any]:
        return {"ready": readiness.ready}

    async def model_ready(request: Any, _: Memory) -> dict[str, Any]:
        models.find(request.name, request.version or None)
        return {"ready": readiness.ready}

    async def server_metadata(_: Any, __: Memory) -> dict[str, Any]:
        return METADATA

    async def metadata(request: Any, _: Memory) -> dict[str, Any]:
        found = models.find(request.name, request.version or None)
        return model_metadata(*found, models.versions(request.name))

    async def config(request: Any, _: Memory) -> dict[str, Any]:
        return {"config": model_config(*models.find(request.name, request.version or None))}

    async def statistics(request: Any, memory: Memory) -> dict[str, Any]:
        write = charged_writer(memory, STATISTICS_BYTES, _identity)
        if not request.name:
            return {"model_stats": await statistics_of_all(models, write)}
        return {"model_stats": await statistics_of(models, request.name, request.version or None, write)}

    async def index(request: Any, memory: Memory) -> dict[str, Any]:
        write = charged_writer(memory, ENTRY_BYTES, _identity)
        return {"models": await repository_index(models, readiness, only_ready=request.ready, write=write)}

    async def find(request: Any, _: Memory) -> dict[str, Any]:
        models.find(request.model_name)
        return {}

    async def check(request: Any, _: Memory) -> dict[str, Any]:
        status = serving_status(request.service, readiness)
        if status == SERVICE_UNKNOWN:
            raise GatherError("model_not_found", f"no service is named {request.service[:200]!a}")
        return {"status": status}

    return {
        "ServerLive": server_live,
        "ServerReady": server_ready,
        "ModelReady": model_ready,
        "ServerMetadata": server_metadata,
        "ModelMetadata": metadata,
        "ModelConfig": config,
        "ModelStatistics": statistics,
        "RepositoryIndex": index,
        "RepositoryModelLoad": find,
        "RepositoryModelUnload": find,
        "Check": check,
    }


def serving_status(service: str, readiness: Readiness) -> int:
    """Return the status of a service for gRPC's health checks. The status of every known service is that of /readyz."""
    if service not in _HEALTH_SERVICES:
        return SERVICE_UNKNOWN
    return SERVING if readiness.ready else NOT_SERVING


def read_message(rpc: Rpc, message: bytes) -> Any:
    """Parse the request of a call. Raises malformed_request."""
    try:
        return _classes(rpc)[0].FromString(message)
    except Exception:  # noqa: BLE001  (protobuf's implementations differ in what they raise)
        raise malformed(f"the message is not a valid {rpc.input}") from None


def _identity(content: dict[str, Any]) -> dict[str, Any]:
    return content


def write_message(rpc: Rpc, content: dict[str, Any]) -> bytes:
    """Encode a response as a message, without the members that exist only in the protocol over REST."""
    message = _classes(rpc)[1]()
    # `Parse` of a single text would hold the interpreter's lock throughout.
    json_format.ParseDict(content, message, ignore_unknown_fields=True, descriptor_pool=POOL)
    written: bytes = message.SerializeToString()
    return written


_CLASSES: Final[dict[str, tuple[Any, Any]]] = {
    rpc.path: (message_class(rpc.input), message_class(rpc.output)) for rpc in RPCS.values()
}


def _classes(rpc: Rpc) -> tuple[Any, Any]:
    return _CLASSES[rpc.path]
