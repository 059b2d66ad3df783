"""Who answers on the data plane: for each name of `app.api.route_table` its handler.

A route's methods and needs stand in the table; what its handler works on is handed to it here.
"""

from __future__ import annotations

from app.api.asgi_request import Handler, RequestContext
from app.api.disk_threads import DiskThreads
from app.api.exchange import Exchange
from app.api.inference import Inference
from app.api.readiness import Readiness
from app.api.routes.aliases import AliasesRoute
from app.api.routes.imports import ImportsRoute
from app.api.routes.tensors import TensorsRoute, with_name
from app.api.routes.tensors_content import ContentRoute
from app.api.routes.tensors_content_in_ranges import ShardedContentRoute
from app.api.routes.tensors_scatter import ScatterRoute
from app.api.routes.v2_infer import InferRoute
from app.cluster.router.published_tensors import PublishedTensors
from app.cluster.router.router import Router
from app.cluster.router.sharded_tensors import ShardedTensors, immutable
from app.formats import body_formats
from app.operators.backward_registry import BACKWARDS
from app.operators.registry import OPERATORS
from app.services.service import Service
from app.settings import Settings
from app.store import LocalStore
from app.tensors.lookup_call import LOOKUP, LOOKUP_SIGNATURE


def handlers_of(
    service: Service,
    inference: Inference,
    store: LocalStore,
    disk_threads: DiskThreads,
    readiness: Readiness,
    settings: Settings,
) -> dict[str, Handler]:
    """Who answers on the data plane, by the names of `app.api.route_table`."""
    infer = InferRoute(inference, settings)
    tensors = TensorsRoute(store, service.limits, disk_threads, settings.max_upload_bytes)
    content = ContentRoute(store, disk_threads)
    aliases = AliasesRoute(store, disk_threads)
    scatter = ScatterRoute(store, service.limits, disk_threads, readiness, settings)
    handlers: dict[str, Handler] = {
        operation: Exchange(body_formats.FORMATS, signature, service, settings)
        for operation, signature in (
            *((row.operation, row.signature) for row in OPERATORS.values()),
            *((row.operation, row.signature) for row in BACKWARDS.values()),
        )
    }
    return handlers | {
        LOOKUP: Exchange(body_formats.LOOKUPS, LOOKUP_SIGNATURE, service, settings),
        "modelInfer": infer,
        "modelVersionInfer": infer,
        "listTensors": tensors.list,
        "getTensor": with_name(tensors.metadata),
        "putTensor": with_name(tensors.put),
        "deleteTensor": with_name(tensors.delete),
        "tensorContent": with_name(content),
        "scatterTensor": with_name(scatter),
        "listAliases": aliases.list,
        "getAlias": aliases.get,
        "putAlias": aliases.put,
        "deleteAlias": aliases.delete,
    }


def import_handlers(imports: ImportsRoute) -> dict[str, Handler]:
    """Who answers requests for imports."""
    return {
        "importTensor": with_name(imports.begin),
        "listImports": imports.list,
        "getImport": imports.get,
        "endImport": imports.delete,
    }


def sharded_handlers(
    service: Service, tables: ShardedTensors, disk_threads: DiskThreads, settings: Settings
) -> dict[str, Handler]:
    """Who answers otherwise where tables are in row ranges: their list, their metadata, and what would change them."""
    assert isinstance(service, Router)
    tensors = TensorsRoute(tables, service.limits, disk_threads, settings.max_upload_bytes)
    aliases = AliasesRoute(tables, disk_threads)

    def refuse(what: str, *, makes: bool = False) -> Handler:
        async def handle(_: RequestContext, name: str) -> None:
            if not makes:
                tables.metadata(name)
            immutable(what)

        return with_name(handle)

    return {
        "listTensors": tensors.list,
        "getTensor": with_name(tensors.metadata),
        "putTensor": with_name(tensors.put),
        "deleteTensor": with_name(tensors.delete),
        "tensorContent": with_name(ShardedContentRoute(tables, service, service.read_scalar)),
        "scatterTensor": refuse("A scatter"),
        **({} if isinstance(tables, PublishedTensors) else {"importTensor": refuse("An import", makes=True)}),
        "listAliases": aliases.list,
        "getAlias": aliases.get,
        "putAlias": aliases.put,
        "deleteAlias": aliases.delete,
    }
