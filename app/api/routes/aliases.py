"""The routes of aliases: list, look, make or move, remove."""

from __future__ import annotations

from typing import Any

import orjson

from app.api.asgi_request import RequestContext
from app.api.conditional_requests import etag_field, is_unchanged, read_conditions
from app.api.disk_threads import DiskThreads
from app.api.error_responses import JSON
from app.api.request_body import check_json_type, read_json
from app.api.routes.tensors import read_page, time_text
from app.requests.schemas.alias_request import alias_target
from app.store.catalogue.catalogue_rows import Alias
from app.store.tensor_store_interface import TensorStore
from app.telemetry.change_log import Change
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
        body = {"aliases": [_described(alias) for alias in found], "next": following}
        await context.send(200, JSON, orjson.dumps(body))

    async def get(self, context: RequestContext) -> None:
        """`GET /aliases/{alias}`."""
        (name,) = context.parameters
        check_name(name)
        context.query_fields()
        alias = await self.threads.look_up(name, lambda: self.store.alias(name))
        if await is_unchanged(context, alias.etag, kind="alias"):
            return
        await context.send(200, JSON, orjson.dumps(_described(alias)), etag_field(alias.etag))

    async def put(self, context: RequestContext) -> None:
        """`PUT /aliases/{alias}`."""
        (name,) = context.parameters
        check_new_name(name)
        context.query_fields()
        check_json_type(context.headers.get(b"content-type", JSON))
        conditions = read_conditions(context.headers)
        target = alias_target(await read_json(context))
        alias, created = await self.threads.change(name, lambda: self.store.put_alias(name, target, conditions))
        context.change = Change("alias made" if created else "alias moved", name, tensor=alias.reference)
        where = ((b"location", context.path.encode()),) if created else ()
        text = orjson.dumps(_described(alias))
        await context.send(201 if created else 200, JSON, text, etag_field(alias.etag), *where)

    async def delete(self, context: RequestContext) -> None:
        """`DELETE /aliases/{alias}`."""
        (name,) = context.parameters
        check_name(name)
        context.query_fields()
        conditions = read_conditions(context.headers)
        await self.threads.change(name, lambda: self.store.delete_alias(name, conditions))
        context.change = Change("alias removed", name)
        await context.send_empty(204)


def _described(alias: Alias) -> dict[str, Any]:
    return {
        "alias": alias.alias,
        "tensor": alias.reference,
        "version": alias.version,
        "etag": alias.etag,
        "created": time_text(alias.created),
        "modified": time_text(alias.modified),
    }
