"""Bind each operation of `app.api.route_table` to its handler.

The table lists the methods and requirements of the routes. This module passes the handlers the parts that they work on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.api.asgi_request import Handler, RequestContext
from app.api.disk_threads import DiskThreads
from app.api.exchange import BodyLimits, Exchange
from app.api.inference import Inference
from app.api.routes import health_and_pages, v2_models
from app.api.routes.aliases import AliasesRoute
from app.api.routes.health_and_pages import answer_with, write_metrics
from app.api.routes.imports import ImportsRoute
from app.api.routes.tensors import TensorsRoute, keep_stored_metadata, with_name
from app.api.routes.tensors_content import Downloads
from app.api.routes.tensors_rows import RowsRoute
from app.api.routes.tensors_scatter import ScatterRoute, ScatterTarget, StoreScatters
from app.api.routes.v2_infer import InferRoute
from app.api.routes.v2_models import ModelRoutes
from app.cluster.router.ask_primary import PrimaryAsks
from app.cluster.router.published_tensors import PublishedTensors
from app.cluster.router.router import Router
from app.cluster.router.sharded_downloads import ShardedDownloads
from app.cluster.router.sharded_scatters import ShardedScatters
from app.cluster.router.sharded_tensors import ShardedTensors, immutable
from app.imports.import_jobs import ImportJobs
from app.operators.registry import ROWS
from app.server.readiness import Readiness
from app.services.service import Service
from app.settings import Settings
from app.store import LocalStore
from app.store.tensor_store_interface import TensorStore
from app.telemetry.request_metrics import Metrics
from app.tensors.operator_signature import Signature
from app.tensors.scatter_call import REMOVE, TABLE_SCATTER, UPSERT

_IMPORT: Final = "An import"


def handlers_of(
    service: Service,
    inference: Inference,
    store: LocalStore,
    tables: ShardedTensors | None,
    imports: ImportJobs,
    disk_threads: DiskThreads,
    readiness: Readiness,
    metrics: Metrics,
    settings: Settings,
) -> dict[str, Handler]:
    """Return the handlers by operation name.

    `tables` are the tables in row ranges, if the service serves those instead of the tensors in `store`.
    """
    listed: TensorStore = store if tables is None else tables
    changing = tables if isinstance(tables, PublishedTensors) else None
    current = keep_stored_metadata if changing is None else changing.current
    tensors = TensorsRoute(listed, service.limits, disk_threads, settings.max_upload_bytes, current)
    aliases = AliasesRoute(listed, disk_threads)
    of_imports = ImportsRoute(listed, store, disk_threads, imports)
    sizes = _body_limits(settings)

    def changing_by(target: ScatterTarget, row: Signature) -> Handler:
        return with_name(ScatterRoute(row, target, service.limits, disk_threads, readiness, sizes))

    of_store = StoreScatters(store, disk_threads)
    downloads = Downloads(store, disk_threads)
    handlers: dict[str, Handler] = {
        **{row.operation: Exchange(row.signature, service, sizes) for row in ROWS.values()},
        "listTensors": tensors.list,
        "getTensor": with_name(tensors.metadata),
        "putTensor": with_name(tensors.put),
        "setReplicas": with_name(tensors.set_replicas),
        "deleteTensor": with_name(tensors.delete),
        "putKeys": with_name(tensors.put_keys),
        "getKeys": with_name(downloads.keys),
        "tensorContent": with_name(downloads.content),
        "tensorRows": with_name(RowsRoute(service)),
        "scatterTensor": changing_by(of_store, TABLE_SCATTER),
        "upsertRows": changing_by(of_store, UPSERT),
        "removeRows": changing_by(of_store, REMOVE),
        "importTensor": with_name(of_imports.begin),
        "listImports": of_imports.list,
        "getImport": of_imports.get,
        "endImport": of_imports.delete,
        "listAliases": aliases.list,
        "putAliases": aliases.put_all,
        "getAlias": aliases.get,
        "putAlias": aliases.put,
        "deleteAlias": aliases.delete,
        **_health_and_page_handlers(readiness, metrics),
        **_protocol_handlers(inference, readiness, settings),
    }
    if tables is None:
        return handlers
    assert isinstance(service, Router)
    if changing is not None:
        asks = PrimaryAsks(service.fetcher)
        of_shards = ShardedScatters(changing, asks, disk_threads)
        handlers |= {
            "scatterTensor": changing_by(of_shards, TABLE_SCATTER),
            "upsertRows": changing_by(of_shards, UPSERT),
            "removeRows": changing_by(of_shards, REMOVE),
        }
    else:
        handlers |= _refusing_handlers(tables, {
            "scatterTensor": "A scatter", "upsertRows": "An upsert", "removeRows": "A removal of rows",
            "importTensor": _IMPORT,
        })  # fmt: skip
    sharded = ShardedDownloads(tables, service)
    return handlers | {"tensorContent": with_name(sharded.content), "getKeys": with_name(sharded.keys)}


def _body_limits(settings: Settings) -> BodyLimits:
    return BodyLimits(int(settings.max_json_bytes), int(settings.max_body_bytes))


def _health_and_page_handlers(readiness: Readiness, metrics: Metrics) -> dict[str, Handler]:
    return {
        "livez": answer_with({"status": "live"}),
        "readyz": answer_with({"status": "ready"}, readiness),
        "metrics": write_metrics(metrics),
        "openapi": health_and_pages.send_openapi,
        "frontPage": health_and_pages.send_front_page,
        "pageAsset": health_and_pages.send_asset,
        "favicon": health_and_pages.send_favicon,
        "docs": health_and_pages.send_docs,
        "docsAsset": health_and_pages.send_docs_asset,
        "errors": health_and_pages.send_catalogue,
        "errorPage": health_and_pages.send_error_page,
    }


def _protocol_handlers(inference: Inference, readiness: Readiness, settings: Settings) -> dict[str, Handler]:
    models = ModelRoutes(inference.models, readiness)
    infer = InferRoute(inference, _body_limits(settings))
    trace_settings = answer_with(v2_models.TRACE_SETTINGS)
    handlers: dict[str, Handler] = {
        "serverMetadata": answer_with(v2_models.METADATA),
        "serverLive": answer_with({"live": True}),
        "serverReady": answer_with({"ready": True}, readiness),
        "statistics": models.statistics_of_all,
        "repositoryIndex": models.index,
        "repositoryLoad": models.load,
        "repositoryUnload": models.load,
        "getLogSettings": answer_with(v2_models.log_settings(settings.log_level)),
        "updateLogSettings": v2_models.refuse_settings,
        "getTraceSettings": trace_settings,
        "updateTraceSettings": v2_models.refuse_settings,
        "getModelTraceSettings": models.with_known_model(trace_settings),
        "updateModelTraceSettings": models.with_known_model(v2_models.refuse_settings),
    }
    for model in ("model", "modelVersion"):
        handlers |= {
            f"{model}Metadata": models.metadata,
            f"{model}Ready": models.ready,
            f"{model}Config": models.config,
            f"{model}Statistics": models.statistics,
            f"{model}Infer": infer,
        }
    for operation in ("Status", "RegionStatus", "Register", "RegionUnregister", "Unregister"):
        for kind in ("system", "cuda"):
            handlers[f"{kind}SharedMemory{operation}"] = v2_models.refuse_shared_memory
    return handlers


def _refusing_handlers(tables: ShardedTensors, operations: Mapping[str, str]) -> dict[str, Handler]:
    """Return handlers that refuse operations on tables in row ranges.

    `operations` maps each operation to its name in the error.
    """

    def refuse(what: str) -> Handler:
        async def handle(_: RequestContext, name: str) -> None:
            if what != _IMPORT:
                tables.metadata(name)
            immutable(what)

        return with_name(handle)

    return {operation: refuse(what) for operation, what in operations.items()}
