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
from app.formats.body_formats import FORMATS, LOOKUPS
from app.imports.import_jobs import ImportJobs
from app.operators.backward_registry import BACKWARDS
from app.operators.registry import OPERATORS
from app.services.service import Service
from app.settings import Settings
from app.store import LocalStore
from app.store.tensor_store_interface import TensorStore
from app.tensors.lookup_call import LOOKUP, LOOKUP_SIGNATURE


def handlers_of(
    service: Service,
    inference: Inference,
    store: LocalStore,
    tables: ShardedTensors | None,
    imports: ImportJobs,
    disk_threads: DiskThreads,
    readiness: Readiness,
    settings: Settings,
) -> dict[str, Handler]:
    """Who answers on the data plane, by the names of `app.api.route_table`.

    `tables` are the tables in row ranges, if tensors are those and not the ones of `store`.
    """
    listed: TensorStore = store if tables is None else tables
    tensors = TensorsRoute(listed, service.limits, disk_threads, settings.max_upload_bytes)
    aliases = AliasesRoute(listed, disk_threads)
    of_imports = ImportsRoute(listed, store, disk_threads, imports)
    infer = InferRoute(inference, settings)
    signatures: dict[str, object] = {row.operation: row.signature for row in OPERATORS.values()}
    signatures |= {row.operation: row.signature for row in BACKWARDS.values()}
    handlers: dict[str, Handler] = {
        **{name: Exchange(FORMATS, signature, service, settings) for name, signature in signatures.items()},
        LOOKUP: Exchange(LOOKUPS, LOOKUP_SIGNATURE, service, settings),
        "modelInfer": infer,
        "modelVersionInfer": infer,
        "listTensors": tensors.list,
        "getTensor": with_name(tensors.metadata),
        "putTensor": with_name(tensors.put),
        "deleteTensor": with_name(tensors.delete),
        "tensorContent": with_name(ContentRoute(store, disk_threads)),
        "scatterTensor": with_name(ScatterRoute(store, service.limits, disk_threads, readiness, settings)),
        "importTensor": with_name(of_imports.begin),
        "listImports": of_imports.list,
        "getImport": of_imports.get,
        "endImport": of_imports.delete,
        "listAliases": aliases.list,
        "getAlias": aliases.get,
        "putAlias": aliases.put,
        "deleteAlias": aliases.delete,
    }
    return handlers if tables is None else handlers | _of_row_ranges(service, tables)


def _of_row_ranges(service: Service, tables: ShardedTensors) -> dict[str, Handler]:
    """Who answers otherwise for tables in row ranges: downloads, and what would change one in place."""
    assert isinstance(service, Router)

    def refuse(what: str, *, makes: bool = False) -> Handler:
        async def handle(_: RequestContext, name: str) -> None:
            if not makes:
                tables.metadata(name)
            immutable(what)

        return with_name(handle)

    found = {
        "tensorContent": with_name(ShardedContentRoute(tables, service, service.read_scalar)),
        "scatterTensor": refuse("A scatter"),
    }
    return found if isinstance(tables, PublishedTensors) else found | {"importTensor": refuse("An import", makes=True)}
