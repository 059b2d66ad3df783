"""Wire the parts together: build the ASGI application from the settings.

This module is long because it is the only place where all parts meet: each statement builds a part or passes it to
another.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import get_args

from starlette.applications import Starlette

from app import periodic_tasks, service_gauges, warmup
from app.api.asgi_app import AsgiApp
from app.api.cors import CrossOrigin
from app.api.disk_threads import DiskThreads
from app.api.inference import Inference
from app.api.route_table import READINESS, SHARD_TABLE, TABLE, RouteTable, template
from app.api.v2_model_lookup import Models
from app.cluster.catalogue.etcd import Database, DatabaseAddress, is_database
from app.cluster.router.catalogue_service import CatalogueService
from app.cluster.router.router import Router
from app.cluster.router.router_files import RouterFiles
from app.cluster.router.sharded_service import ShardedService
from app.cluster.shard.read_gate import GatedStore, wait_for_sequence
from app.dispatch import gpu_discovery
from app.dispatch.admission_control import Admission
from app.dispatch.choose_backend import BackendChooser
from app.dispatch.gpu_gathers import Gpu
from app.dispatch.measured_rates import machine_rates, measure_gpu
from app.dispatch.request_thread_pool import RequestThreadPool
from app.grpc_api.grpc_package import check_grpc
from app.imports.import_jobs import ImportJobs
from app.imports.source_urls import AllowedSources, parse_prefix
from app.kernels.gpu_interface import DeviceFailed, NoDevice, OutOfDeviceMemory
from app.kernels.kernel_by_name import kernel_named
from app.memory.budget import Budget
from app.memory.malloc_tuning import FreedMemoryLimit
from app.route_handlers import handlers_of
from app.security.authorizer import KeyAuthorizer, make_authorizer
from app.security.file_watcher import LastGood
from app.security.host_header_check import HostHeaderCheck, is_loopback_name
from app.server import request_header_cache
from app.server.readiness import Readiness
from app.server.restarting_tasks import BackgroundTasks
from app.server.served_application import FurtherListener
from app.server.unix_sockets import is_private
from app.services.service import Service
from app.settings import Settings
from app.shard_from_settings import Shard, cluster_key_of
from app.store import LocalStore, Quota
from app.store.import_records import State
from app.telemetry.model_statistics import Statistics
from app.telemetry.request_log import RequestLog
from app.telemetry.request_metrics import Metrics
from app.telemetry.shared_counters import Counters
from app.telemetry.tracing import start_tracing

logger = logging.getLogger("gathernd")


def split_threads(settings: Settings) -> int:
    """Return the number of threads over which a gather may be split, which is 1 if the kernel does not split
    gathers.
    """
    return settings.threads if kernel_named(settings.kernel).splits else 1


def use_gpu(settings: Settings, service: Service) -> None:
    """Find and measure a GPU for the service. If there is none, `service.chooser.no_gpu` says why.

    Raises NoDevice if the settings require a GPU and none can be used.
    """
    try:
        device = gpu_discovery.find_gpu(settings.device, settings.workers, settings.gpu_memory)
        threshold = measure_gpu(device, service.kernel, service.chooser.threads)
    except (NoDevice, OutOfDeviceMemory, DeviceFailed) as reason:
        if settings.device == "gpu":
            raise NoDevice(f"GATHERND_DEVICE=gpu needs a GPU: {reason}") from None
        service.chooser = replace(service.chooser, no_gpu=str(reason))
        logger.info("gathers run on the CPU: %s", reason)
        return
    gpu = Gpu(device, threshold, settings.max_queue, settings.queue_timeout)
    logger.info("GPU: %s, %d MiB of memory for gathers", device.description, device.memory >> 20)
    service.use_gpu(gpu, always=settings.device == "gpu")


class Application(AsgiApp):
    """The ASGI application, with the members that its server needs."""

    settings: Settings
    service: Service
    store: LocalStore
    shard: Shard | None
    background: BackgroundTasks
    models: Models
    inference: Inference
    removed_at_the_end: ExitStack
    further_listener: FurtherListener | None = None

    def release(self) -> None:
        """Before the process ends immediately, release the store and remove the files of Unix sockets."""
        self.store.close()
        self.removed_at_the_end.close()


def create_app(
    settings: Settings,
    counters: Counters | None = None,
    *,
    store_token: str | None = None,
    last_good: LastGood | None = None,
) -> Application:
    """Build the service. Kernels are compiled after the server has started, before /readyz reports ready.

    A worker receives from its parent the `counters` that all workers share, the token of the process group that owns
    the store, and the last good contents of the key files and of a router's files. Raises BadKeysFile, BadShardMap and
    NoTracing.

    The function is long because each statement builds one part from those before it, so that the order can be read in
    one place.
    """
    readiness = Readiness("kernels")
    log = RequestLog(settings.log_rate, READINESS, access=settings.access_log)
    tracing = start_tracing(settings.otlp_endpoint)
    routes = SHARD_TABLE if settings.shard else TABLE
    metrics = Metrics(counters, log, _template(settings, routes), tracing)
    total = settings.memory_budget // settings.workers
    budget = Budget(total, settings.max_requests, FreedMemoryLimit(total // 8))
    pool = RequestThreadPool(settings.threads, settings.max_queue, settings.queue_timeout)
    kernel = kernel_named(settings.kernel)
    threads = split_threads(settings)
    chooser = BackendChooser(loop_max_us=settings.loop_max_us, split_min_us=settings.split_min_us, threads=threads)
    limits = settings.limits
    store = (GatedStore if settings.shard else LocalStore)(
        settings.store_dir,
        limits,
        Quota(settings.max_store_bytes, settings.max_tensors, settings.max_idempotency_keys),
        store_token,
        settings.memory_budget,
        settings.workers,
        settings.keep_versions,
    )

    # Create these cells here, on the event loop, because cells may be created only there, and imports are counted in a
    # thread.
    import_cells = {state: metrics.counters.cell(f"gathernd_imports|{state}") for state in get_args(State)}
    imported_bytes = metrics.counters.cell("gathernd_imported_bytes")

    def count_import(state: State, size: int) -> None:
        metrics.counters.values[import_cells[state]] += 1
        metrics.counters.values[imported_bytes] += size

    sharded: ShardedService | CatalogueService | None = None
    if settings.cluster is not None and not settings.shard:
        files = router_files(settings, last_good)
        late_after, keep = settings.shard_timeout, settings.keep_versions
        if files.shard_map is not None:
            sharded = ShardedService(files.shard_map, late_after, files)
        else:
            database = Database(DatabaseAddress.parse(settings.cluster), files.tls)
            sharded = CatalogueService(database, late_after, limits, keep, store.upload, files, metrics.counters)
    tables = None if sharded is None else sharded.tables
    disk_threads = DiskThreads()
    allowed = AllowedSources([parse_prefix(text) for text in settings.import_from], settings.import_s3_endpoint)
    imports = ImportJobs(
        store,
        allowed,
        budget,
        max_bytes=settings.max_upload_bytes,
        at_once=settings.max_imports,
        count=count_import,
        tensors=tables,
    )
    store.run_in_background = disk_threads.run_in_background
    service: Service
    if sharded is None:
        service = Service(limits, store, kernel, pool, chooser, budget)
    else:
        service = router = Router(limits, sharded.tables, kernel, pool, chooser, budget)
        router.fetcher = sharded.fetcher
        if tracing is not None:
            router.fetcher.forwarded_lines = tracing.forwarded_lines
    service.run_in_lock_thread = disk_threads.change
    models = Models(service, Statistics(metrics.counters))
    inference = Inference(models, metrics)
    authorizer = make_authorizer(
        settings.api_keys_file,
        loopback=is_local(settings),
        last_good=last_good,
        on_change=request_header_cache.clear,
        cluster_key=cluster_key_of(settings),
    )
    background = BackgroundTasks(lambda name: metrics.counters.add(f"gathernd_background_failures|{name}"))

    def measure() -> None:
        rates = machine_rates(kernel, settings.cache_dir)
        service.chooser = replace(service.chooser, rates=rates)
        use_gpu(settings, service)
        if service.gpu is not None:
            service.gpu.on_fallback = lambda: metrics.counters.add("gathernd_gpu_fallbacks")

    def prepare() -> Callable[[], None] | None:
        compile_all = warmup.warm(settings.cache_dir, lambda name: logger.debug("ready: %s", name), settings.kernel)
        if sharded is not None:
            sharded.connect()
        if compile_all is None:
            measure()
            return None
        logger.info("compiling kernels for the first time: requests will take longer until this is done")

        def compile_and_measure() -> None:
            compile_all()
            measure()

        if gpu_discovery.may_use_gpu(settings.device, settings.workers):
            compile_and_measure()  # so that its first response already knows about the GPU
            return None
        return compile_and_measure

    shard = None
    if isinstance(store, GatedStore):
        shard = Shard(settings, store, disk_threads, allowed, readiness, metrics.counters)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await asyncio.to_thread(store.open)
        stop = Event()
        preparing = asyncio.create_task(_prepare(prepare, readiness))
        background.start("sweep", lambda: periodic_tasks.sweep(store, service))
        background.start("verify", lambda: periodic_tasks.verify(store, stop))
        background.start("publish", lambda: periodic_tasks.publish(metrics))
        background.start("memory", lambda: periodic_tasks.give_back_memory(metrics, service))
        background.start("damage", lambda: periodic_tasks.count_damaged(store, metrics))
        if isinstance(authorizer, KeyAuthorizer):
            background.start("keys", authorizer.watch)
        if shard is not None:
            shard.begin(stop)
        if sharded is not None:
            background.start("map", sharded.watch)
            background.start("shards", lambda: sharded.count(metrics.counters.add))
        try:
            yield
        finally:
            stop.set()
            await asyncio.to_thread(imports.close)
            await background.close()
            if sharded is not None:
                await sharded.close()
            metrics.publish()
            metrics.changes.sweep(stopping=True)
            if tracing is not None:
                await asyncio.to_thread(tracing.close)
            await preparing
            pool.close()
            if service.gpu is not None:
                service.gpu.close()
            disk_threads.shutdown()
            if shard is not None:
                shard.close()
            store.close()

    metrics.gauges.update(service_gauges.process_gauges(service, settings))
    if isinstance(authorizer, KeyAuthorizer):
        metrics.key_label = authorizer.label
    metrics.common = lambda: service_gauges.common_gauges(store, settings, tables)
    if shard is not None:
        gauges = shard.gauges
        metrics.common = lambda: service_gauges.common_gauges(store, settings) | gauges()
        metrics.gauges["gathernd_range_lag_seconds"] = shard.lag
        metrics.unsummed["gathernd_catalogue_age_seconds"] = shard.catalogue_age
    handlers = handlers_of(service, inference, store, tables, imports, disk_threads, readiness, metrics, settings)
    if shard is not None:
        handlers |= shard.handlers
    app = Application(
        Starlette(lifespan=lifespan),
        handlers,
        host_check=HostHeaderCheck(settings.host, settings.allowed_hosts, settings.cors_origins),
        cross_origin=CrossOrigin(settings.cors_origins) if settings.cors_origins else None,
        authorizer=authorizer,
        readiness=readiness,
        metrics=metrics,
        admission=Admission(budget, pool, settings.max_requests),
        deadline=settings.deadline,
        routes=routes,
        node=settings.node if settings.shard else None,
        wait_for_sequence=partial(wait_for_sequence, store) if isinstance(store, GatedStore) else None,
    )
    app.settings = settings
    app.service = service
    app.store = store
    app.shard = shard
    app.background = background
    app.models = models
    app.inference = inference
    app.removed_at_the_end = ExitStack()
    return app


def router_files(settings: Settings, last_good: LastGood | None = None) -> RouterFiles:
    """Return the watched files of a router. A key file is used only together with a map file. Raises BadShardMap."""
    if settings.cluster is not None and is_database(settings.cluster):
        DatabaseAddress.parse(settings.cluster)  # fail on a bad address before any worker starts
    if settings.cluster is None or is_database(settings.cluster):
        return RouterFiles(None, None, settings.cluster_ca, last_good)
    return RouterFiles(Path(settings.cluster), settings.cluster_key_file, settings.cluster_ca, last_good)


def is_local(settings: Settings) -> bool:
    """Return whether the service can be reached only from this machine.

    Unix sockets must also be restricted to the service's user and group.
    """
    on_sockets = settings.uds is not None or settings.grpc_uds is not None
    private = not on_sockets or is_private(int(settings.uds_mode, 8))
    return private and is_loopback_name(settings.host)


def _template(settings: Settings, routes: RouteTable) -> Callable[[str], str]:
    """Return the function that maps a path to its label for counting, including gRPC calls if gRPC is served."""
    if not settings.serves_grpc:
        return lambda path: template(path, routes)
    check_grpc()
    from app.grpc_api import rpc_table  # noqa: PLC0415

    return lambda path: rpc_table.template(path) or template(path, routes)


async def _prepare(work: Callable[[], Callable[[], None] | None], readiness: Readiness) -> None:
    """Run `work`, which prepares what requests need. Then mark the service ready, and run the rest in a thread."""
    try:
        rest = await asyncio.to_thread(work)
    except Exception as error:
        logger.exception("the kernels could not be prepared")
        readiness.failed = type(error).__name__
        return
    # Objects created at startup live as long as the process, so the collector need not scan them again.
    gc.collect()
    gc.freeze()
    readiness.mark_done("kernels")
    if rest is not None:  # in a daemon thread, which a shutdown does not wait for
        Thread(target=_compile_rest, args=(rest,), daemon=True).start()


def _compile_rest(rest: Callable[[], None]) -> None:
    try:
        rest()
    except Exception:
        logger.exception("some kernels could not be compiled: requests use Python and NumPy instead")
    else:
        logger.info("all kernels are compiled")
