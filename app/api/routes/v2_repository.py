"""The repository of the inference protocol's models: its index, and loading and unloading, which change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import orjson

from app.api.asgi_request import RequestContext
from app.api.error_responses import JSON
from app.api.request_body import read_body
from app.api.routes.v2_models import charging
from app.api.schemas.v2_messages import IndexEntry
from app.api.v2_model_lookup import Models
from app.errors import GatherError, invalid_field
from app.server.readiness import Readiness

_INDEX_BYTES: Final = 1 << 16
"""Most bytes of the body of a request for the repository's index, which has one member."""

ENTRY_BYTES: Final = 1 << 10
"""What the entry of a version takes in an answer: its text twice, or a message and its JSON."""
T = TypeVar("T")


class RepositoryRoutes:
    """Below `/v2/repository`."""

    def __init__(self, models: Models, readiness: Readiness) -> None:
        self.models = models
        self.readiness = readiness

    async def index(self, context: RequestContext) -> None:
        """`POST /v2/repository/index`."""
        only_ready = await _wants_ready(context)
        write = charging(context.memory, ENTRY_BYTES, orjson.dumps)
        pieces = await repository_index(self.models, self.readiness, only_ready=only_ready, write=write)
        await context.send(200, JSON, b"[" + b",".join(pieces) + b"]")

    async def change(self, context: RequestContext) -> None:
        """`POST /v2/repository/models/{name}/load` and `unload`."""
        (name,) = context.parameters
        self.models.find(name)
        await context.send_empty(200, (b"content-length", b"0"))


async def repository_index(
    models: Models,
    readiness: Readiness,
    *,
    only_ready: bool,
    write: Callable[[dict[str, Any]], T],
) -> list[T]:
    """What `write` makes of the entry of every version of every model; with `only_ready` of those that may be called.

    In a thread: there may be very many.
    """

    def written() -> list[T]:
        entries = (entry for name in models.names() for entry in _index_entries(name, models, readiness))
        return [write(entry.model_dump()) for entry in entries if entry.state == "READY" or not only_ready]

    return await asyncio.to_thread(written)


def _index_entries(name: str, models: Models, readiness: Readiness) -> Iterator[IndexEntry]:
    """Every version of a model. Of a tensor's older ones, of which there may be very many, no file is looked at."""
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
    """Whether the body of a repository index request asks for ready models only; the body may be empty."""
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
