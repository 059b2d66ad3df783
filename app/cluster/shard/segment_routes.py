"""The internal routes of a shard, which list, pull and drop segments; their rows are in `route_rows.shard_segments`.

An order carries the fencing token of its reconciler, and is refused if the shard has seen an order of a later leader;
see `Fence`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import orjson

from app.api.asgi_request import Handler, RequestContext
from app.api.disk_threads import DiskThreads
from app.api.error_responses import JSON
from app.api.request_body import read_body
from app.api.upload_receiver import MEMORY_BYTES
from app.cluster.shard.pull_order import PullOrder
from app.cluster.shard.pull_segment import Pull, segment_digest
from app.cluster.shard.shard_folder import Fence
from app.cluster.shard_tls import client_context
from app.dispatch.request_thread_pool import ClientGone
from app.errors import GatherError, invalid_field
from app.imports import read_source
from app.imports.source_urls import AllowedSources
from app.store import LocalStore, Metadata
from app.store.files.tensor_file import PAGE
from app.store.store_errors import storage_errors
from app.telemetry.tensor_change_log import Change

_SEGMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.[0-9]{1,20}-[0-9]{1,20}")
"""The names that `shard_map.shard_tensor` returns. These routes refuse all other tensors of the store."""
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_MOST_BODY: Final = 1 << 20
_PULLS: Final = 8
"""Maximum number of concurrent pulls in a process. Further pulls wait."""
_LOOK_S: Final = 1.0
"""Seconds between checks, during a pull, of whether the service is shutting down."""
_PAGE: Final = 1000


class SegmentRoutes:
    """Routes that list, pull and drop the segments in `store`. `key` returns the API key for calls to other shards."""

    def __init__(
        self,
        store: LocalStore,
        threads: DiskThreads,
        fence: Fence,
        key: Callable[[], str | None],
        authorities: Path | None,
        allowed: AllowedSources,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._store = store
        self._threads = threads
        self._fence = fence
        self._key = key
        self._authorities = authorities
        self._allowed = allowed
        self._is_stopping = is_stopping
        self._pulls = ThreadPoolExecutor(_PULLS, "pull")

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The handlers, by operation name."""
        return {
            "checkRoom": self.check_room,
            "listSegments": self.list,
            "pullSegment": self.pull,
            "dropSegment": self.drop,
        }

    async def check_room(self, context: RequestContext) -> None:
        """Handle `GET /shard/room`: respond with 204 if a segment of this size fits now, or with insufficient_storage.

        A router sends this request before it sends rows, because segments that the catalogue no longer lists may still
        take up space for several seconds.
        """
        size = _number(context.query_fields(), "bytes")

        def check() -> None:
            with storage_errors():
                self._store.check_room(size + size // 64 + PAGE)

        await self._threads.look_up("", check)
        await context.send_empty(204)

    async def list(self, context: RequestContext) -> None:
        """Handle `GET /shard/segments`: respond with the complete segments and the fence.

        If the query contains a token, the fence is first raised to it.
        """
        fields = context.query_fields()
        token = _token(fields) if "fence" in fields else None

        def listed() -> dict[str, Any]:
            with storage_errors():
                if token is not None:
                    self._fence.raise_to(token)
                fence = self._fence.highest()
            return {"segments": segments_of(self._store), "fence": fence}

        found = await self._threads.look_up("", listed)
        await context.send(200, JSON, orjson.dumps(found))

    async def pull(self, context: RequestContext) -> None:
        """Handle `POST /shard/segments/{tensor}`: respond once the segment is complete and durable.

        If the caller disconnects or the service stops, the pull ends and leaves nothing behind.
        """
        tensor = segment_of(context)
        order = PullOrder.from_json(bytes(await read_body(context, _MOST_BODY, name="small_body_bytes")))
        context.memory.charge(max(MEMORY_BYTES, read_source.MEMORY_BYTES if order.origin else 0))

        def begin() -> Pull:
            fence = nullcontext() if order.fence is None else self._fence.held(order.fence)
            with storage_errors(), fence:
                tls = None if self._authorities is None else client_context(self._authorities)
                return Pull(self._store, tensor, order, self._key(), tls, self._allowed)

        pull = await self._threads.change(tensor, begin)
        context.exchange.on_disconnect = pull.cancel
        if context.exchange.disconnected:
            raise ClientGone
        working = asyncio.get_running_loop().run_in_executor(self._pulls, pull.run)
        try:
            while not working.done():
                await asyncio.wait((working,), timeout=_LOOK_S)
                if self._is_stopping():
                    pull.cancel()
            if self._is_stopping() and isinstance(working.exception(), ClientGone):
                raise GatherError("not_ready", "the service is stopping", retry_after=1)
            metadata, is_new = working.result()
        except BaseException:
            pull.cancel()
            await asyncio.wait((working,))
            raise
        finally:
            context.exchange.on_disconnect = None
            del working  # `working` holds its error, whose traceback refers to this frame
        if is_new:
            context.changes = [Change("segment pulled", tensor, None, metadata.size)]
        await context.send(200, JSON, orjson.dumps(segment_body(metadata)))

    async def drop(self, context: RequestContext) -> None:
        """Handle `DELETE /shard/segments/{tensor}`: respond with 204, even if the segment does not exist."""
        tensor = segment_of(context)
        token = _token(context.query_fields())

        def removed() -> bool:
            with storage_errors(), self._fence.held(token):
                try:
                    self._store.delete(tensor)
                except GatherError as problem:
                    if problem.code != "tensor_not_found":
                        raise
                    return False
            return True

        if await self._threads.change(tensor, removed):
            context.changes = [Change("segment dropped", tensor)]
        await context.send_empty(204)


def segments_of(store: LocalStore) -> list[dict[str, Any]]:
    """Return the complete segments in the form of the routes' responses."""
    store.sweep()
    found: list[dict[str, Any]] = []
    after = None
    while True:
        page, after = store.page(_PAGE, after)
        found += [segment_body(one) for one in page if _SEGMENT.fullmatch(one.name) and not one.damaged]
        if after is None:
            return found


def segment_body(segment: Metadata) -> dict[str, Any]:
    """Return a segment in the form of the routes' responses."""
    return {"tensor": segment.name, "size": segment.size, "sha256": segment_digest(segment)}


def segment_of(context: RequestContext) -> str:
    """Return the name of the segment in the path. Raises invalid_field for other tensors."""
    (tensor,) = context.parameters
    if not _SEGMENT.fullmatch(tensor):
        raise invalid_field("/tensor", f"{tensor!r} is no segment: the name of one is CONTENT.START-STOP")
    return tensor


def _token(fields: Mapping[str, str]) -> int:
    """Return a reconciler's fencing token."""
    return _number(fields, "fence")


def _number(fields: Mapping[str, str], name: str) -> int:
    text = fields.get(name, "")
    if not _NUMBER.fullmatch(text):
        raise invalid_field(f"/query/{name}", f"{name} must be a number")
    return int(text)
