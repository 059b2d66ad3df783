"""The models of the inference protocol over HTTP: metadata, configuration and statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from typing import Any, Final, TypeVar

import orjson

from app.api.asgi_request import Handler, RequestContext
from app.api.error_responses import JSON
from app.api.schemas.v2_model_description import model_config, model_metadata
from app.api.v2_model_lookup import Models, counted_as
from app.memory.budget import Memory
from app.server.readiness import Readiness

T = TypeVar("T")
STATISTICS_BYTES: Final = 1 << 11
"""What the statistics of a version take in an answer: their text twice, or a message and its JSON."""


class ModelRoutes:
    """`/v2/models/stats`, and what is below `/v2/models/{name}` and `/v2/models/{name}/versions/{version}`."""

    def __init__(self, models: Models, readiness: Readiness) -> None:
        self.models = models
        self.readiness = readiness

    async def metadata(self, context: RequestContext) -> None:
        """`GET /v2/models/{name}`."""
        name, version = _asked(context)
        body = model_metadata(*self.models.find(name, version), self.models.versions(name))
        await context.send(200, JSON, orjson.dumps(body))

    async def ready(self, context: RequestContext) -> None:
        """`GET /v2/models/{name}/ready`."""
        name, version = _asked(context)
        self.models.find(name, version)
        self.readiness.check()
        await context.send(200, JSON, orjson.dumps({"name": name, "ready": True}))

    async def config(self, context: RequestContext) -> None:
        """`GET /v2/models/{name}/config`."""
        body = model_config(*self.models.find(*_asked(context)))
        await context.send(200, JSON, orjson.dumps(body))

    async def statistics(self, context: RequestContext) -> None:
        """`GET /v2/models/{name}/stats`."""
        await _send_statistics(context, await statistics_of(self.models, *_asked(context), _writer(context)))

    async def statistics_of_all(self, context: RequestContext) -> None:
        """`GET /v2/models/stats`."""
        await _send_statistics(context, await statistics_of_all(self.models, _writer(context)))

    def after_finding(self, handler: Handler) -> Handler:
        """`handler` for requests that name a model. Raises model_not_found."""

        async def handle(context: RequestContext) -> None:
            self.models.find(*context.parameters)
            await handler(context)

        return handle


def _asked(context: RequestContext) -> tuple[str, str | None]:
    """Name and version of the model in the path; None without a version."""
    name, *version = context.parameters
    return name, version[0] if version else None


def _writer(context: RequestContext) -> Callable[[dict[str, Any]], bytes]:
    return charging(context.memory, STATISTICS_BYTES, orjson.dumps)


async def _send_statistics(context: RequestContext, models: list[bytes]) -> None:
    await context.send(200, JSON, b'{"model_stats":[' + b",".join(models) + b"]}")


def charging(memory: Memory, size: int, write: Callable[[dict[str, Any]], T]) -> Callable[[dict[str, Any]], T]:
    """`write`, with `memory` charged `size` bytes before each call."""

    def charged(body: dict[str, Any]) -> T:
        memory.charge(size)
        return write(body)

    return charged


async def statistics_of_all(models: Models, write: Callable[[dict[str, Any]], T]) -> list[T]:
    """What `write` makes of the statistics of every model's newest version, and of all versions that were called."""

    def every() -> tuple[list[str], set[str]]:
        names = models.names()
        return models.counted(names, newest=1), set(models.counted(names))

    # In a thread, since the store may have to look at its folder, and there may be very many versions.
    newest, counted = await asyncio.to_thread(every)
    models.statistics.keep(counted)
    return await _statistics(models, newest, counted, write)


async def statistics_of(
    models: Models, name: str, version: str | None, write: Callable[[dict[str, Any]], T]
) -> list[T]:
    """What `write` makes of the statistics of a model's versions, or of one of them. Raises model_not_found."""
    models.find(name, version)
    counted = models.counted([name]) if version is None else [counted_as(name, version)]
    return await _statistics(models, counted, frozenset(), write)


async def _statistics(
    models: Models, names: list[str], more: Set[str], write: Callable[[dict[str, Any]], T]
) -> list[T]:
    return await asyncio.to_thread(lambda: [write(body) for body in models.statistics.bodies(names, more)])
