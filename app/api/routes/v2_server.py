"""The inference protocol's routes for the server as a whole: metadata and settings.

Log and trace settings can be read. A request to change them, or for shared memory, gets 501 with the reason.
"""

from __future__ import annotations

from typing import Any, Final

from app import __version__
from app.api.asgi_request import RequestContext
from app.errors import GatherError

METADATA: Final[dict[str, Any]] = {
    "name": "gathernd",
    "version": __version__,
    "extensions": [
        "binary_tensor_data",
        "model_configuration",
        "model_repository",
        "model_repository(unload_dependents)",
        "parameters",
        "statistics",
    ],
}
TRACE_SETTINGS: Final = {
    "trace_level": ["OFF"],
    "trace_rate": "0",
    "trace_count": "0",
    "log_frequency": "0",
    "trace_file": "",
}


def log_settings(log_level: str) -> dict[str, Any]:
    """Return the settings of a log with this level, under Triton's names."""
    return {
        "log_file": "",
        "log_info": log_level in ("debug", "info"),
        "log_warning": log_level != "error",
        "log_error": True,
        "log_verbose_level": int(log_level == "debug"),
        "log_format": "default",
    }


async def refuse_settings(context: RequestContext) -> None:
    """`POST /v2/logging` and `POST /v2/trace/setting`."""
    raise GatherError("not_implemented", "log and trace settings can only be set by the operator at start-up")


async def refuse_shared_memory(context: RequestContext) -> None:
    """`/v2/systemsharedmemory/...` and `/v2/cudasharedmemory/...`."""
    raise GatherError("not_implemented", "shared memory is not supported; send the tensors in the request")
