"""What is counted about requests, cheaply enough for the hot path, and Prometheus' view of it, summed over processes.

The names of the cells (see `counters`) are the metric's name and its labels, apart by "|". They come from closed sets:
route templates, methods and codes, never from what a client makes up. Anything that a template stands for is counted
under it, anything else under "other".
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from app import __version__
from app.api.counters import GAUGE, Counters, alone
from app.api.errors import STATUS
from app.api.exchange import Exchange
from app.errors import Code

BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
STAGES: Final = ("parse", "queue", "kernel", "encode")
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
_REMEMBERED: Final = 4096
FLUSH_S: Final = 0.02

# Name, labels, help. Everything that is counted under a name of this table is shown.
COUNTERS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "gathernd_requests": (
        ("method", "path", "status"),
        "Requests answered, by route template and status; status 0: the client went away first.",
    ),
    "gathernd_errors": (("code",), "Errors answered, by code of the catalogue: what was rejected and why."),
    "gathernd_kernel_routes": (
        ("predicted", "taken"),
        "Gathers, by the route predicted to be the fastest and the one taken.",
    ),
    "gathernd_stage_seconds": (("path", "stage"), "Seconds that gathers spent in each stage, added up."),
    "gathernd_received_bytes": ((), "Bytes of request bodies received."),
    "gathernd_sent_bytes": ((), "Bytes of response bodies sent."),
    "gathernd_workers_started": ((), "Worker processes started, the first ones included."),
    "gathernd_workers_died": ((), "Worker processes that ended without being asked to."),
}
GAUGES: Final[Mapping[str, str]] = {
    "gathernd_requests_in_flight": "Requests being answered.",
    "gathernd_connections": "Open connections.",
    "gathernd_queue_depth": "Calls of the thread pool that run or wait.",
    "gathernd_memory_used_bytes": "Bytes of the memory budget that requests and answers hold.",
    "gathernd_memory_budget_bytes": "Bytes of the memory budget.",
    "gathernd_processes": "Processes that answer requests.",
    "gathernd_resident_tensors": "Resident tensors.",
    "gathernd_resident_bytes": "Bytes of the resident tensors.",
}


RESIDENT_GAUGES: Final = ("gathernd_resident_tensors", "gathernd_resident_bytes")


class Templates:
    """Finds the route template that a path is of."""

    def __init__(self, templates: Iterable[str]) -> None:
        self._exact: set[str] = set()
        self._by_size: dict[int, list[tuple[str, list[str]]]] = {}
        for template in templates:
            if "{" in template:
                parts = template.split("/")
                self._by_size.setdefault(len(parts), []).append((template, parts))
            else:
                self._exact.add(template)

    def of(self, path: str) -> str:
        """The template of `path`, or "other"."""
        if path in self._exact:
            return path
        sent = path.split("/")
        for template, parts in self._by_size.get(len(sent), ()):
            if all(part == given or (part[:1] == "{" and given) for part, given in zip(parts, sent, strict=True)):
                return template
        return "other"


class Times:
    """How long the requests of one route template took, since the last flush."""

    __slots__ = ("buckets", "cell", "encode", "kernel", "parse", "queue", "seconds")

    def __init__(self, cell: int) -> None:
        self.cell = cell
        self.clear()

    def clear(self) -> None:
        """Start anew."""
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = self.parse = self.queue = self.kernel = self.encode = 0.0

    def numbers(self) -> tuple[float, ...]:
        """The numbers in the order of their cells."""
        return *self.buckets, self.seconds, self.parse, self.queue, self.kernel, self.encode


class Tally:
    """How many requests of one method, template and status there were, since the last flush."""

    __slots__ = ("cell", "count", "times")

    def __init__(self, cell: int, times: Times) -> None:
        self.cell = cell
        self.count = 0
        self.times = times


class Metrics(Collector):
    """Counts requests. `gauges` are read in every process and summed; another process's are as old as its `publish`.

    `common` are those that are the same whichever process is asked; it may block, and is called in a thread.

    Requests are counted in plain objects, since a number in shared memory costs three times as much, and written there
    within FLUSH_S of the first. Who adds up waits that long first, so that nothing that was answered is missing.
    """

    def __init__(self, counters: Counters | None = None) -> None:
        self.counters = counters or alone()
        self.gauges: dict[str, Callable[[], float]] = {
            "gathernd_processes": lambda: 1,
            "gathernd_requests_in_flight": lambda: self._in_flight,
        }
        self.common: Callable[[], Mapping[str, float]] = dict
        self._shared: dict[str, float] = {}
        self._templates = Templates(())
        self._in_flight = self._received = self._sent = 0
        self._routes: Counter[str] = Counter()
        self._places: dict[tuple[str, str, int], Tally] = {}  # by method, path and status
        self._tallies: dict[int, Tally] = {}
        self._times: dict[str, Times] = {}
        self._scheduled = False
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def know(self, templates: Iterable[str]) -> None:
        """Count paths under these route templates."""
        self._templates = Templates(templates)
        self._places.clear()

    def begin(self) -> int:
        """A request has come, which `count` ends: how many are under way with it."""
        self._in_flight = running = self._in_flight + 1
        return running

    def count(self, exchange: Exchange, code: str | None) -> None:
        """Count a request that has been answered; `code` is its error's, if it had one. From the event loop."""
        status, cycle, stages = exchange.status, exchange.cycle, exchange.stages
        now = perf_counter()
        self._in_flight -= 1
        if cycle is not None:
            self._received += cycle.received
            self._sent += cycle.sent
            if cycle.refusal is not None:
                code = cycle.refusal
                status = status or STATUS[code]
        try:
            tally = self._places[exchange.method, exchange.path, status]
        except KeyError:
            tally = self._place(exchange.method, exchange.path, status)
        tally.count += 1
        times = tally.times
        start = stages.start
        seconds = now - start
        times.buckets[bisect_left(BUCKETS, seconds)] += 1
        times.seconds += seconds
        if code is not None:
            self.counters.add(f"gathernd_errors|{code}")
        elif stages.route is not None:
            parsed, kernel, end = stages.parsed, stages.kernel, stages.kernel_end
            times.parse += parsed - start
            times.queue += kernel - parsed
            times.kernel += end - kernel
            times.encode += now - end
            self._routes[stages.route] += 1
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def count_refusal(self, code: Code) -> None:
        """Count a request that was refused before it could be read, so that its path is not known."""
        self.counters.add(f"gathernd_errors|{code}")
        self.counters.add(f"gathernd_requests|other|unread|{STATUS[code]}")

    def _place(self, method: str, path: str, status: int) -> Tally:
        template = self._templates.of(path)
        shown = method if method in METHODS else "other"
        cell = self.counters.cell(f"gathernd_requests|{shown}|{template}|{status}")
        tally = self._tallies.get(cell)
        if tally is None:
            tally = self._tallies[cell] = Tally(cell, self._times_of(template))
        if len(self._places) >= _REMEMBERED:
            self._places.clear()
        self._places[method, path, status] = tally
        return tally

    def _times_of(self, template: str) -> Times:
        times = self._times.get(template)
        if times is None:
            names = [f"gathernd_request_seconds|{template}|{bound}" for bound in (*BUCKETS, "+Inf", "sum")]
            names += [f"gathernd_stage_seconds|{template}|{stage}" for stage in STAGES]
            times = self._times[template] = Times(self.counters.row(names))
        return times

    def flush(self) -> None:
        """Write what was counted to where other processes see it."""
        self._scheduled = False
        counters, values = self.counters, self.counters.values
        for tally in self._tallies.values():
            if tally.count:
                values[tally.cell] += tally.count
                tally.count = 0
        for times in self._times.values():
            if times.seconds:
                for cell, number in enumerate(times.numbers(), times.cell):
                    values[cell] += number
                times.clear()
        for route, number in self._routes.items():
            counters.add(f"gathernd_kernel_routes|{route}|{route}", number)
        self._routes.clear()
        counters.add("gathernd_received_bytes", self._received)
        counters.add("gathernd_sent_bytes", self._sent)
        self._received = self._sent = 0

    def publish(self) -> None:
        """`flush`, and this process's gauges."""
        self.flush()
        for name, read in self.gauges.items():
            self.counters.put(GAUGE + name, read())

    def collect(self) -> Iterator[Metric]:
        """Prometheus' view of the numbers of all processes."""
        self.publish()
        totals = self.counters.totals()
        totals.update(self._shared)
        parts: dict[str, list[tuple[list[str], float]]] = {}
        for name, number in sorted(totals.items()):
            first, *chosen = name.split("|")
            parts.setdefault(first, []).append((chosen, number))
        yield _build()
        for name, (labels, text) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=labels)
            for values, number in parts.get(name, ()):
                if number or not labels:
                    counter.add_metric(values, number)
            yield counter
        yield _histogram(parts.get("gathernd_request_seconds", ()))
        for name, text in GAUGES.items():
            gauge = GaugeMetricFamily(name, text)
            for _, number in parts.get(GAUGE + name, ()):
                gauge.add_metric((), number)
            yield gauge

    async def text(self) -> bytes:
        """The exposition text of GET /metrics."""
        if self.counters.shared:
            await asyncio.sleep(2 * FLUSH_S)
        shared = await asyncio.to_thread(self.common)
        self._shared = {GAUGE + name: number for name, number in shared.items()}
        return generate_latest(self._registry)


def _build() -> Metric:
    build = GaugeMetricFamily(
        "gathernd_build_info", "Always 1; the label says which version runs.", labels=("version",)
    )
    build.add_metric((__version__,), 1)
    return build


def _histogram(cells: Iterable[tuple[list[str], float]]) -> Metric:
    by_path: dict[str, dict[str, float]] = {}
    for (path, bound), number in cells:
        by_path.setdefault(path, {})[bound] = number
    seconds = HistogramMetricFamily("gathernd_request_seconds", "Seconds from request to answer.", labels=("path",))
    for path, found in by_path.items():
        total, buckets = 0.0, []
        for bound in (*map(str, BUCKETS), "+Inf"):
            total += found.get(bound, 0.0)
            buckets.append((bound, total))
        seconds.add_metric((path,), buckets, found.get("sum", 0.0))
    return seconds
