"""Handlers for aliases: list, read, create or move, and remove."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from app.api.asgi_request import RequestContext
from app.api.conditional_requests import conditions_of, etag_field, is_unchanged, read_conditions
from app.api.disk_threads import DiskThreads
from app.api.error_responses import JSON
from app.api.request_body import check_json_type, read_json
from app.api.routes.tensors import read_page, time_text
from app.catalogue.aliases import AliasMove
from app.catalogue.records import Alias
from app.requests.schemas.management_requests import MOST_BYTES, alias_moves, alias_target
from app.store.tensor_store_interface import TensorStore
from app.telemetry.tensor_change_log import Change
from app.tensors.tensor_name import check_name, check_new_name


class AliasesRoute:
    """`/aliases` and `/aliases/{alias}`."""

    def __init__(self, store: TensorStore, threads: DiskThreads) -> None:
        self.store = store
        self.threads = threads

    async def list(self, context: RequestContext) -> None:
        """`GET /aliases`."""
        limit, after = read_page(context)
        found, following = await self.threads.look_up("", lambda: self.store.alias_page(limit, after))
        await context.send(200, JSON, _list_body(found, following))

    async def get(self, context: RequestContext) -> None:
        """`GET /aliases/{alias}`."""
        (name,) = context.parameters
        check_name(name)
        context.query_fields()
        alias = await self.threads.look_up(name, lambda: self.store.alias(name))
        if await is_unchanged(context, alias.etag, kind="alias"):
            return
        await context.send(200, JSON, orjson.dumps(_alias_body(alias)), etag_field(alias.etag))

    async def put(self, context: RequestContext) -> None:
        """`PUT /aliases/{alias}`."""
        (name,) = context.parameters
        check_new_name(name)
        context.query_fields()
        check_json_type(context.headers.get(b"content-type", JSON))
        conditions = read_conditions(context.headers)
        move = AliasMove(name, alias_target(await read_json(context)), conditions)
        ((alias, created),) = await self._move_aliases(context, [move])
        where = ((b"location", context.path.encode()),) if created else ()
        text = orjson.dumps(_alias_body(alias))
        await context.send(201 if created else 200, JSON, text, etag_field(alias.etag), *where)

    async def delete(self, context: RequestContext) -> None:
        """`DELETE /aliases/{alias}`."""
        (name,) = context.parameters
        check_name(name)
        context.query_fields()
        conditions = read_conditions(context.headers)
        await self.threads.change(name, lambda: self.store.delete_alias(name, conditions))
        context.changes = [Change("alias removed", name)]
        await context.send_empty(204)

    async def put_all(self, context: RequestContext) -> None:
        """`PUT /aliases`."""
        context.query_fields()
        check_json_type(context.headers.get(b"content-type", JSON))
        moves = [
            AliasMove(
                one.alias,
                one.asked.tensor,
                conditions_of(one.asked.if_match, one.asked.if_none_match, one.pointer),
                one.pointer,
                one.target_pointer,
            )
            for one in alias_moves(await read_json(context, MOST_BYTES))
        ]
        made = await self._move_aliases(context, moves)
        aliases = sorted((alias for alias, _ in made), key=lambda alias: alias.alias)
        await context.send(200, JSON, _list_body(aliases, None))

    async def _move_aliases(self, context: RequestContext, moves: Sequence[AliasMove]) -> Sequence[tuple[Alias, bool]]:
        """Create or move aliases, and log each change."""
        made = await self.threads.change(moves[0].alias, lambda: self.store.put_aliases(moves))
        context.changes = [
            Change("alias made" if created else "alias moved", alias.alias, tensor=alias.reference)
            for alias, created in made
        ]
        return made


def _list_body(aliases: Sequence[Alias], following: str | None) -> bytes:
    return orjson.dumps({"aliases": [_alias_body(alias) for alias in aliases], "next": following})


def _alias_body(alias: Alias) -> dict[str, Any]:
    return {
        "alias": alias.alias,
        "tensor": alias.reference,
        "version": alias.version,
        "etag": alias.etag,
        "created": time_text(alias.created),
        "modified": time_text(alias.modified),
    }
