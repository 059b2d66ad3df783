"""Handlers for imports: start an import, list imports, read progress, and cancel an import or delete its record."""

from __future__ import annotations

from typing import Any

from app.api.asgi_request import RequestContext
from app.api.conditional_requests import read_conditions
from app.api.disk_threads import DiskThreads
from app.api.error_responses import JSON, problem
from app.api.request_body import check_json_type, read_json
from app.api.route_table import path_of
from app.api.routes.tensors import metadata_body, read_flag, read_keep, read_note, read_page, read_replicas, time_text
from app.errors import GatherError
from app.imports.import_jobs import ImportJobs
from app.imports.import_steps import ImportSpec
from app.requests.schemas.management_requests import import_request
from app.store import Conditions, LocalStore
from app.store.import_records import ImportRecord
from app.store.tensor_store_interface import TensorStore
from app.surrogate_safe_json import dump
from app.tensors.tensor_name import check_new_name


class ImportsRoute:
    """`/tensors/{name}/import`, `/imports` and `/imports/{id}`: imports into `tensors`, with records in `store`."""

    def __init__(self, tensors: TensorStore, store: LocalStore, threads: DiskThreads, jobs: ImportJobs) -> None:
        self.tensors = tensors
        self.store = store
        self.threads = threads
        self.jobs = jobs

    async def begin(self, context: RequestContext, name: str) -> None:
        """`POST /tensors/{name}/import`."""
        check_new_name(name)
        fields = context.query_fields()
        keep, replicas = read_keep(fields), read_replicas(fields, self.tensors)
        prefault, lock = read_flag(fields, "prefault"), read_flag(fields, "lock")
        check_json_type(context.headers.get(b"content-type", JSON))
        conditions = read_conditions(context.headers)
        asked = import_request(await read_json(context))
        note = read_note(asked.note, "/note")
        url = self.jobs.allowed.check(asked.url)
        etag = await self.threads.look_up(name, lambda: self.tensors.etag_to_replace(name))
        if conditions != Conditions():
            conditions.check(etag)  # checked again at the commit
        request = ImportSpec(name, url, asked.tensor, conditions, keep, prefault, lock, note, replicas, asked.keys)
        record = await self.jobs.begin(request, context.metrics.caller(context))
        where = (b"location", path_of("getImport", id=record.id).encode())
        await context.send(202, JSON, dump(_import_body(record, context.request_id)), where)

    async def list(self, context: RequestContext) -> None:
        """`GET /imports`."""
        limit, after = read_page(context)
        found, following = await self.threads.look_up("", lambda: self.store.imports.page(limit, after))
        body = {"imports": [_import_body(record, context.request_id) for record in found], "next": following}
        await context.send(200, JSON, dump(body))

    async def get(self, context: RequestContext) -> None:
        """`GET /imports/{id}`."""
        (number,) = context.parameters
        context.query_fields()
        record = await self.threads.look_up("", lambda: self.store.imports.find(number))
        if record is None:
            raise _unknown_import(number)
        await context.send(200, JSON, dump(_import_body(record, context.request_id)))

    async def delete(self, context: RequestContext) -> None:
        """`DELETE /imports/{id}`."""
        (number,) = context.parameters
        context.query_fields()
        if not await self.threads.look_up("", lambda: self.store.imports.cancel(number)):
            raise _unknown_import(number)
        await context.send_empty(204)


def _unknown_import(number: str) -> GatherError:
    return GatherError(
        "not_found",
        f"no import has the id {number[:64]!r}, or the service has forgotten it",
        hint="Use an id that GET /imports lists.",
    )


def _import_body(record: ImportRecord, request_id: str) -> dict[str, Any]:
    return {
        "id": record.id,
        "name": record.name,
        "url": record.url,
        "tensor": record.tensor,
        "state": record.state,
        "bytes_done": record.done,
        "bytes_total": record.total,
        "created": time_text(record.created),
        "ended": None if record.ended is None else time_text(record.ended),
        "error": None if record.error is None else problem(record.error.as_error(), request_id),
        "metadata": None if record.metadata is None else metadata_body(record.metadata),
    }
