"""The metrics of a reconciler, served at /metrics on a separate port and computed for each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.cluster.catalogue.ranges import min_in_sync
from app.cluster.catalogue.transitions import used_bytes
from app.cluster.reconciler.cluster_status import living_replicas
from app.cluster.reconciler.reconciler import Reconciler

IN_OFFICE: Final = ("gathernd_reconciler_in_office", "1 while this reconciler is the leader.")
SHORT: Final = (
    "gathernd_reconciler_segments_short",
    "Segments with fewer replicas than wanted on running shards.",
)
UNREACHABLE: Final = (
    "gathernd_reconciler_segments_unreachable",
    "Segments without a running shard: requests for their rows fail.",
)
OPEN: Final = ("gathernd_reconciler_ranges_open", "Ranges that accept scatters.")
OPEN_BELOW: Final = (
    "gathernd_reconciler_ranges_below_min_in_sync",
    "Ranges that refuse scatters because too few running shards are in sync.",
)
OPEN_SHORT: Final = (
    "gathernd_reconciler_ranges_short_of_in_sync",
    "Ranges that accept scatters with fewer in-sync replicas on running shards than wanted.",
)
PULLS: Final = ("gathernd_reconciler_pulls_running", "Copies of segments in progress.")
OLDEST: Final = ("gathernd_reconciler_oldest_pull_seconds", "Age of the oldest copy in progress.")
ALIVE: Final = (
    "gathernd_reconciler_shard_alive",
    "1 if the shard is running, 0 if the catalogue lists it and it is lost.",
)
USED: Final = ("gathernd_reconciler_shard_bytes", "Bytes that the catalogue lists on a shard, uploads included.")
CAPACITY: Final = ("gathernd_reconciler_shard_capacity_bytes", "Bytes that a shard may hold.")
FAILOVERS: Final = ("gathernd_reconciler_failovers", "Ranges that were given a new primary because theirs was lost.")
COUNTERS: Final = {
    "pulls": ("gathernd_reconciler_pulls", "Segments that shards have pulled."),
    "pulls_failed": ("gathernd_reconciler_pulls_failed", "Pulls that have failed."),
    "drops": ("gathernd_reconciler_drops", "Segments that shards have dropped."),
    "drops_failed": ("gathernd_reconciler_drops_failed", "Drops that have failed."),
    "lists_failed": ("gathernd_reconciler_lists_failed", "Requests for a shard's segment list that got no response."),
    "flips": ("gathernd_reconciler_flips", "Moves that are recorded in the catalogue."),
}
"""The name and help text of each metric, by field of `Counts`."""
SERIES: Final = frozenset(
    [name for name, _ in (IN_OFFICE, SHORT, UNREACHABLE, PULLS, OLDEST, ALIVE, USED, CAPACITY)]
    + [name for name, _ in (OPEN, OPEN_BELOW, OPEN_SHORT)]
    + [f"{name}_total" for name, _ in (*COUNTERS.values(), FAILOVERS)]
)
"""The names of all series."""


class ReconcilerMetrics(Collector):
    """The metrics of one reconciler. Only the leader reports the state of the cluster."""

    def __init__(self, reconciler: Reconciler, now: Callable[[], float] = monotonic) -> None:
        self._reconciler = reconciler
        self._now = now

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        view, pulling = self._reconciler.view, list(self._reconciler.pulling.values())
        yield GaugeMetricFamily(*IN_OFFICE, value=float(view is not None))
        yield GaugeMetricFamily(*PULLS, value=len(pulling))
        yield GaugeMetricFamily(*OLDEST, value=max((self._now() - one.begun for one in pulling), default=0.0))
        for name, family in COUNTERS.items():
            yield CounterMetricFamily(*family, value=getattr(self._reconciler.counts, name))
        yield CounterMetricFamily(*FAILOVERS, value=self._reconciler.failover.count)
        if view is None:
            return
        catalogue, used = view.catalogue, used_bytes(view.catalogue)
        held = {node: holding.segments for node, holding in view.holdings.items()}
        living = [living_replicas(one, catalogue, held) for one in view.segments]
        short = sum(has < one.replicas for has, one in zip(living, view.segments, strict=True))
        yield GaugeMetricFamily(*SHORT, value=short)
        yield GaugeMetricFamily(*UNREACHABLE, value=living.count(0))
        opened = [(has, one) for has, one in zip(living, view.segments, strict=True) if one.opened is not None]
        yield GaugeMetricFamily(*OPEN, value=len(opened))
        yield GaugeMetricFamily(*OPEN_BELOW, value=sum(has < min_in_sync(one.replicas) for has, one in opened))
        yield GaugeMetricFamily(*OPEN_SHORT, value=sum(has < one.replicas for has, one in opened))
        for family, values in (
            (ALIVE, {node: float(node in catalogue.alive) for node in used if used[node] or node in catalogue.alive}),
            (USED, used),
            (CAPACITY, {name: node.capacity for name, node in catalogue.nodes.items()}),
        ):
            gauge = GaugeMetricFamily(*family, labels=["node"])
            for node, value in values.items():
                gauge.add_metric([node], value)
            yield gauge


def serve_metrics(reconciler: Reconciler, host: str, port: int) -> Callable[[], None]:
    """Serve the metrics from a thread. Returns a function that stops it."""
    registry = CollectorRegistry()
    registry.register(ReconcilerMetrics(reconciler))
    server, thread = start_http_server(port, host, registry)

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close
