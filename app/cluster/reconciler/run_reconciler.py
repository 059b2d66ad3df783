"""The process that runs a reconciler: its event loop, its signals and its metrics port."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from ssl import SSLContext

from app.cluster.catalogue.etcd import Database
from app.cluster.reconciler.catalogue_calls import CatalogueCalls
from app.cluster.reconciler.metrics import serve_metrics
from app.cluster.reconciler.plan import Planner
from app.cluster.reconciler.reconciler import Reconciler
from app.cluster.reconciler.shard_calls import ShardCalls


def reconcile(
    database: Database,
    tls: SSLContext | None = None,
    metrics: tuple[str, int] | None = None,
    planner: Callable[[], Planner] = Planner,
) -> None:
    """Run a reconciler until SIGINT or SIGTERM, with metrics at /metrics on the given host and port.

    The lease of `database` is released at the end, so another reconciler takes over immediately.
    """
    try:
        asyncio.run(_run_until_signal(database, tls, metrics, planner))
    finally:
        database.close()


async def _run_until_signal(
    database: Database, tls: SSLContext | None, metrics: tuple[str, int] | None, planner: Callable[[], Planner]
) -> None:
    catalogues = CatalogueCalls(database)
    async with ShardCalls(tls) as shards, AsyncExitStack() as closing:
        closing.callback(catalogues.close)
        reconciler = Reconciler(catalogues, shards, planner=planner)
        running = asyncio.create_task(reconciler.run())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        if metrics is not None:
            closing.callback(serve_metrics(reconciler, *metrics))
        with suppress(asyncio.CancelledError):
            await running
