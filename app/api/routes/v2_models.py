"""Handlers for the inference protocol over HTTP, except infer.

They cover metadata, configuration, statistics, settings and the repository index.

Loading or unloading a model has no effect. Log and trace settings can be read. A request to change them, or to use
shared memory, gets 501 with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Set
from typing import Any, Final, TypeVar

import orjson

from app import __version__
from app.api.asgi_request import Handler, RequestContext
from app.api.error_responses import JSON
from app.api.request_body import read_body
from app.api.schemas.v2_messages import IndexEntry
from app.api.v2_model_lookup import Models, model_config, model_metadata, statistics_label
from app.errors import GatherError, invalid_field
from app.memory.budget import Memory
from app.server.readiness import Readiness

T = TypeVar("T")
STATISTICS_BYTES: Final = 1 << 11
"""Bytes of memory for the statistics of a version in a response: two copies of their text, or a message and its
JSON.
"""
ENTRY_BYTES: Final = 1 << 10
"""Bytes of memory for the entry of a version in the index: two copies of its text, or a message and its JSON."""
_INDEX_BYTES: Final = 1 << 16
"""Maximum size of the body of a repository index request, which has one member."""


class ModelRoutes:
    """The handlers below `/v2/models` and `/v2/repository`."""

    def __init__(self, models: Models, readiness: Readiness) -> None:
        self.models = models
        self.readiness = readiness

    async def metadata(self, context: RequestContext) -> None:
        """`GET /v2/models/{name}`."""
        name, version = _model_in_path(context)
        body = model_metadata(*self.models.find(name, version), self.models.versions(name))
        await context.send(200, JSON, orjson.dumps(body))

    async def ready(self, context: RequestContext) -> None:
        """`GET /v2/models/{name}/ready`."""
        name, version = _model_in_path(context)
        self.models.find(name, version)
        self.readiness.check()
        await context.send(200, JSON, orjson.dumps({"name": name, "ready": True}))

    async def config(self, context: RequestContext) -> None:
        """`GET /v2/models/{name}/config`."""
        body = model_config(*self.models.find(*_model_in_path(context)))
        await context.send(200, JSON, orjson.dumps(body))

    async def statistics(self, context: RequestContext) -> None:
        """`GET /v2/models/{name}/stats`."""
        await _send_statistics(context, await statistics_of(self.models, *_model_in_path(context), _writer(context)))

    async def statistics_of_all(self, context: RequestContext) -> None:
        """`GET /v2/models/stats`."""
        await _send_statistics(context, await statistics_of_all(self.models, _writer(context)))

    async def index(self, context: RequestContext) -> None:
        """`POST /v2/repository/index`."""
        only_ready = await _wants_ready(context)
        write = charged_writer(context.memory, ENTRY_BYTES, orjson.dumps)
        pieces = await repository_index(self.models, self.readiness, only_ready=only_ready, write=write)
        await context.send(200, JSON, b"[" + b",".join(pieces) + b"]")

    async def load(self, context: RequestContext) -> None:
        """`POST /v2/repository/models/{name}/load` and `unload`."""
        (name,) = context.parameters
        self.models.find(name)
        await context.send_empty(200, (b"content-length", b"0"))

    def with_known_model(self, handler: Handler) -> Handler:
        """Wrap `handler` with a check that the requested model exists. Raises model_not_found."""

        async def handle(context: RequestContext) -> None:
            self.models.find(*context.parameters)
            await handler(context)

        return handle


def _model_in_path(context: RequestContext) -> tuple[str, str | None]:
    """Return the model name and version in the path; the version may be None."""
    name, *version = context.parameters
    return name, version[0] if version else None


def _writer(context: RequestContext) -> Callable[[dict[str, Any]], bytes]:
    return charged_writer(context.memory, STATISTICS_BYTES, orjson.dumps)


async def _send_statistics(context: RequestContext, models: list[bytes]) -> None:
    await context.send(200, JSON, b'{"model_stats":[' + b",".join(models) + b"]}")


def charged_writer(memory: Memory, size: int, write: Callable[[dict[str, Any]], T]) -> Callable[[dict[str, Any]], T]:
    """Wrap `write` so that each call first charges `size` bytes to `memory`."""

    def charged(body: dict[str, Any]) -> T:
        memory.charge(size)
        return write(body)

    return charged


async def statistics_of_all(models: Models, write: Callable[[dict[str, Any]], T]) -> list[T]:
    """Apply `write` to the statistics of each model's newest version and of all other versions that were called."""

    def every() -> tuple[list[str], set[str]]:
        names = models.names()
        return models.statistics_labels(names, newest=1), set(models.statistics_labels(names))

    # This runs in a thread, because the store may have to read its folder, and there may be very many versions.
    newest, counted = await asyncio.to_thread(every)
    models.statistics.keep(counted)
    return await _statistics_bodies(models, newest, counted, write)


async def statistics_of(
    models: Models, name: str, version: str | None, write: Callable[[dict[str, Any]], T]
) -> list[T]:
    """Apply `write` to the statistics of a model's versions, or of one of them. Raises model_not_found."""
    models.find(name, version)
    counted = models.statistics_labels([name]) if version is None else [statistics_label(name, version)]
    return await _statistics_bodies(models, counted, frozenset(), write)


async def _statistics_bodies(
    models: Models, names: list[str], more: Set[str], write: Callable[[dict[str, Any]], T]
) -> list[T]:
    return await asyncio.to_thread(lambda: [write(body) for body in models.statistics.bodies(names, more)])


async def repository_index(
    models: Models,
    readiness: Readiness,
    *,
    only_ready: bool,
    write: Callable[[dict[str, Any]], T],
) -> list[T]:
    """Apply `write` to the index entry of every version of every model, or only the callable ones if `only_ready`.

    Runs in a thread, because there may be very many versions.
    """

    def written() -> list[T]:
        entries = (entry for name in models.names() for entry in _index_entries(name, models, readiness))
        return [write(entry.model_dump()) for entry in entries if entry.state == "READY" or not only_ready]

    return await asyncio.to_thread(written)


def _index_entries(name: str, models: Models, readiness: Readiness) -> Iterator[IndexEntry]:
    """Yield an entry for each version of a model. Files of older versions are not checked, since there may be many."""
    versions = models.versions(name)
    for version in versions:
        yield _index_entry(name, version, version == versions[-1], models, readiness)


def _index_entry(name: str, version: str, is_newest: bool, models: Models, readiness: Readiness) -> IndexEntry:
    try:
        if is_newest:
            models.find(name, version)
        else:
            models.check_older(name, version)
        readiness.check()
    except GatherError as error:
        return IndexEntry(name=name, version=version, state="UNAVAILABLE", reason=error.detail)
    return IndexEntry(name=name, version=version, state="READY", reason="")


async def _wants_ready(context: RequestContext) -> bool:
    """Return True if a repository index request asks only for ready models. The body may be empty."""
    body = await read_body(context, _INDEX_BYTES, name="small_body_bytes")
    if not body:
        return False
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise GatherError("malformed_request", f"the body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise invalid_field("", "the body must be a JSON object", "Send a JSON object, or no body at all.")
    ready = document.get("ready", False)
    if not isinstance(ready, bool):
        raise invalid_field("/ready", "ready must be true or false", "Write true or false at /ready.")
    return ready


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
    raise GatherError(
        "not_implemented", "log and trace settings can be set only by the operator, when the service starts"
    )


async def refuse_shared_memory(context: RequestContext) -> None:
    """`/v2/systemsharedmemory/...` and `/v2/cudasharedmemory/...`."""
    raise GatherError("not_implemented", "shared memory is not supported; send the tensors in the request")
