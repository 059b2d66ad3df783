"""The models of the inference protocol over HTTP: metadata, configuration and statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Set
from typing import Any, Final, NoReturn, TypeVar

import orjson
from fastapi import Depends, FastAPI, Request, Response

from app.api.openapi_document import OF_MODEL, protocol_operation
from app.api.readiness import Readiness
from app.api.route_rows.operation import header
from app.api.schemas.v2_messages import (
    InferAnswer,
    ModelMetadata,
    ModelReady,
    StatisticsBody,
)
from app.api.schemas.v2_model_description import model_config, model_metadata
from app.api.v2_model_lookup import Models, counted_as
from app.errors import Code
from app.memory.budget import Memory
from app.operators.lookup import CODES as LOOKUP_CODES
from app.operators.registry import OPERATORS
from app.requests.schemas.infer_request import infer_request

_INFER: Final[tuple[Code, ...]] = (
    "model_not_found", "payload_too_large", "unsupported_media_type", "invalid_field", "unsupported_dtype",
    "value_not_representable", "element_count_mismatch", "output_too_large", "limit_exceeded", "device_unavailable",
    "overloaded", "not_ready", "deadline_exceeded", "shard_unavailable", "tensor_damaged", "not_implemented",
    "tensor_not_found", *LOOKUP_CODES,
    *(code for operator in OPERATORS.values() for code in operator.codes),
)  # fmt: skip
_INFER_HEADERS: Final = {
    "X-Gathernd-Data-ETag": header("ETag of the resident data that was read."),
    "X-Gathernd-Data-Version": header("Number of the version of it that was read."),
    "X-Gathernd-Replaced": header("How many components of the indices were out of bounds, unless that is an error."),
    "Content-Encoding": header("gzip or deflate, where the request asks for that."),
    "Inference-Header-Content-Length": {
        "description": "Bytes of JSON at the start of a binary answer.",
        "schema": {"type": "integer"},
    },
}

T = TypeVar("T")
STATISTICS_BYTES: Final = 1 << 11
"""What the statistics of a version take in an answer: their text twice, or a message and its JSON."""


def add_model_routes(app: FastAPI, models: Models, readiness: Readiness) -> None:
    """Add the routes of models; infer requests are only described."""

    # Before the routes of one model, whose name "stats" would be.
    @protocol_operation(app, "statistics", "Counts and times of every model", response_model=StatisticsBody)
    async def statistics(request: Request) -> Response:
        return await _written(request, lambda write: statistics_of_all(models, write))

    _add_model(app, models, readiness, "", _every_version)
    _add_model(app, models, readiness, "Version", _version_of_path)


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
    """The same of a model's versions, or of one of them. Raises model_not_found."""
    models.find(name, version)
    counted = models.counted([name]) if version is None else [counted_as(name, version)]
    return await _statistics(models, counted, frozenset(), write)


async def _statistics(
    models: Models, names: list[str], more: Set[str], write: Callable[[dict[str, Any]], T]
) -> list[T]:
    await models.statistics.flush_all()

    return await asyncio.to_thread(lambda: [write(body) for body in models.statistics.bodies(names, more)])


async def _written(
    request: Request, statistics: Callable[[Callable[[dict[str, Any]], bytes]], Awaitable[list[bytes]]]
) -> Response:
    """The answer with statistics, whose text is made in a thread: there may be those of very many versions."""
    pieces = await statistics(charging(request.scope["context"].reservation, STATISTICS_BYTES, orjson.dumps))
    return Response(b'{"model_stats":[' + b",".join(pieces) + b"]}", media_type="application/json")


async def _version_of_path(version: str) -> str:
    return version


async def _every_version() -> None:
    return None


def _add_model(app: FastAPI, models: Models, readiness: Readiness, suffix: str, version_of: Callable[..., Any]) -> None:
    """Add the routes of one model, whose names have `suffix` in them; `version_of` finds the version asked for."""
    find = models.find

    @protocol_operation(
        app, f"model{suffix}Metadata", "What a model takes and gives", *OF_MODEL, response_model_exclude_none=True
    )
    async def metadata(name: str, version: str | None = Depends(version_of)) -> ModelMetadata:
        return ModelMetadata.model_validate(model_metadata(*find(name, version), models.versions(name)))

    @protocol_operation(app, f"model{suffix}Ready", "Whether a model may be called", *OF_MODEL, "not_ready")
    async def ready(name: str, version: str | None = Depends(version_of)) -> ModelReady:
        find(name, version)
        readiness.check()
        return ModelReady(name=name, ready=True)

    @protocol_operation(app, f"model{suffix}Config", "The model's configuration, as Triton words it", *OF_MODEL)
    async def config(name: str, version: str | None = Depends(version_of)) -> dict[str, Any]:
        return model_config(*find(name, version))

    @protocol_operation(
        app, f"model{suffix}Statistics", "Counts and times of a model", *OF_MODEL, response_model=StatisticsBody
    )
    async def statistics(request: Request, name: str, version: str | None = Depends(version_of)) -> Response:
        return await _written(request, lambda write: statistics_of(models, name, version, write))

    describe = protocol_operation(
        app,
        f"model{suffix}Infer",
        "Gather",
        *_INFER,
        description="Items may also follow the JSON in binary (binary tensor data extension): the header field "
        "`Inference-Header-Content-Length` then says how long the JSON is, in the request and in the answer. An answer "
        "is compressed where `Accept-Encoding` is exactly `gzip` or `deflate`.",
        response_model=InferAnswer,
        answers={200: {"description": "The outputs", "headers": _INFER_HEADERS}},
    )

    async def infer(name: str, body: Any, version: str | None = Depends(version_of)) -> NoReturn:
        raise AssertionError("answered by the data plane")

    signatures = [operator.signature for operator in OPERATORS.values()]
    infer.__annotations__["body"] = infer_request(*signatures)
    describe(infer)
