"""The inference protocol's routes for the server as a whole: metadata, health and settings.

Log and trace settings can be read. A request to change them, or for shared memory, gets 501 with the reason.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from app import __version__
from app.api.asgi_request import Handler, RequestContext
from app.api.error_responses import JSON
from app.errors import GatherError
from app.server.readiness import Readiness

EXTENSIONS: Final = (
    "binary_tensor_data", "model_configuration", "model_repository", "model_repository(unload_dependents)",
    "parameters", "statistics",
)  # fmt: skip
TRACE_SETTINGS: Final = {
    "trace_level": ["OFF"],
    "trace_rate": "0",
    "trace_count": "0",
    "log_frequency": "0",
    "trace_file": "",
}


def log_settings(log_level: str) -> dict[str, Any]:
    """The settings of a log of this level, in Triton's words."""
    return {
        "log_file": "",
        "log_info": log_level in ("debug", "info"),
        "log_warning": log_level != "error",
        "log_error": True,
        "log_verbose_level": int(log_level == "debug"),
        "log_format": "default",
    }


class ServerRoutes:
    """`/v2` and `/v2/health`."""

    def __init__(self, readiness: Readiness) -> None:
        self.readiness = readiness

    async def metadata(self, context: RequestContext) -> None:
        """`GET /v2`."""
        body = {"name": "gathernd", "version": __version__, "extensions": EXTENSIONS}
        await context.send(200, JSON, orjson.dumps(body))

    async def live(self, context: RequestContext) -> None:
        """`GET /v2/health/live`."""
        await context.send(200, JSON, b'{"live":true}')

    async def ready(self, context: RequestContext) -> None:
        """`GET /v2/health/ready`."""
        self.readiness.check()
        await context.send(200, JSON, b'{"ready":true}')


def answer_with(body: dict[str, Any]) -> Handler:
    """A handler that always answers `body`."""
    text = orjson.dumps(body)

    async def answer(context: RequestContext) -> None:
        await context.send(200, JSON, text)

    return answer


async def refuse_settings(context: RequestContext) -> None:
    """`POST /v2/logging` and `POST /v2/trace/setting`."""
    raise GatherError("not_implemented", "log and trace settings are the operator's, set at start-up")


async def refuse_shared_memory(context: RequestContext) -> None:
    """`/v2/systemsharedmemory/...` and `/v2/cudasharedmemory/...`."""
    raise GatherError("not_implemented", "shared memory is not offered here; send the tensors in the request")
