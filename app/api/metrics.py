"""What is counted about requests, cheaply enough for the hot path, and Prometheus' view of it, summed over processes.

The names of the cells (see `counters`) are the metric's name and its labels, apart by "|". They come from closed sets:
route templates, methods and codes, never from what a client makes up. Anything that a template stands for is counted
under it, anything else under "other".
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import Final, get_args

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from app.api.counters import GAUGE, Counters, alone
from app.api.errors import STATUS
from app.api.exchange import Exchange
from app.api.exposition import BUCKETS, families
from app.api.logs import RequestLog, Seen, trace_id_of
from app.dispatch.cost import Route
from app.errors import GatherError
from app.service import Stages

STAGES: Final = ("parse", "queue", "kernel", "encode")
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH")
_REMEMBERED: Final = 4096
FLUSH_S: Final = 0.02
TOGETHER: Final = 64
"""So many requests are added up at once: few enough that all are still in the processor's cache."""


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


class Taken:
    """The gathers predicted to be fastest on one route that took one, and their seconds, since the last flush."""

    __slots__ = ("count", "measured", "predicted")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start anew."""
        self.count = 0
        self.predicted = self.measured = 0.0


class Metrics(Collector):
    """Counts requests, and has those that failed written to `log`.

    `gauges` are read in every process and summed; another process's are as old as its `publish`. `common` are those
    that are the same whichever process is asked; it may block, and is called in a thread.

    Requests are gathered in a list, then added up and written to shared memory within FLUSH_S of the first, since a
    number there costs three times as much as one in a plain object. Who adds up waits that long first, so that nothing
    that was answered is missing.
    """

    def __init__(self, counters: Counters | None = None, log: RequestLog | None = None) -> None:
        self.counters = counters or alone()
        self.log = log or RequestLog(0)
        self.gauges: dict[str, Callable[[], float]] = {
            "gathernd_processes": lambda: 1,
            "gathernd_requests_in_flight": lambda: self._in_flight,
        }
        self.common: Callable[[], Mapping[str, float]] = dict
        self._shared: dict[str, float] = {}
        self._templates = Templates(())
        self._in_flight = self._received = self._sent = 0
        self._routes = {predicted: {taken: Taken() for taken in get_args(Route)} for predicted in get_args(Route)}
        self._places: dict[tuple[str, str, int], Tally] = {}  # by method, path and status
        self._tallies: dict[int, Tally] = {}
        self._times: dict[str, Times] = {}
        self._finished: list[tuple[str, str, int, str | None, Stages, int, int]] = []
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
        cycle, stages = exchange.cycle, exchange.stages
        stages.over = perf_counter()
        stages.caller = None  # which leads to the request and its body
        self._in_flight -= 1
        status, received, sent = exchange.status, 0, 0
        if cycle is not None:
            received, sent = cycle.received, cycle.sent
            if cycle.refusal is not None:
                status, code = outcome(exchange, code)
        if code is not None:
            self.counters.add(f"gathernd_errors|{code}")
            self.failed(exchange, status, code, stages.over - stages.start)
        finished = self._finished
        finished.append((exchange.method, exchange.path, status, code, stages, received, sent))
        if len(finished) >= TOGETHER:
            self._add_up()
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def _add_up(self) -> None:
        """Count what has finished since the last time."""
        finished, self._finished = self._finished, []
        places, routes = self._places, self._routes
        all_received = all_sent = 0
        for method, path, status, code, stages, received, sent in finished:
            try:
                tally = places[method, path, status]
            except KeyError:
                tally = self._place(method, path, status)
            tally.count += 1
            all_received += received
            all_sent += sent
            times, start, over = tally.times, stages.start, stages.over
            seconds = over - start
            times.buckets[bisect_left(BUCKETS, seconds)] += 1
            times.seconds += seconds
            if code is None and stages.route is not None:
                parsed, kernel, end, choice = stages.parsed, stages.kernel, stages.kernel_end, stages.choice
                ran = end - kernel
                times.parse += parsed - start
                times.queue += kernel - parsed
                times.kernel += ran
                times.encode += over - end
                taken = routes[choice.route][stages.route]
                taken.count += 1
                taken.predicted += choice.seconds
                taken.measured += ran
        self._received += all_received
        self._sent += all_sent

    def failed(self, exchange: Exchange, status: int, code: str, seconds: float) -> None:
        """Write a line about a request that was refused or failed."""
        self.log.tell(self.seen(exchange, status, code, seconds, trace_id_of(exchange.headers)))

    def seen(self, exchange: Exchange, status: int, code: str | None, seconds: float, trace_id: str | None) -> Seen:
        """What a line says of a request that is over."""
        client = exchange.scope.get("client")
        return Seen(
            exchange.method if exchange.method in METHODS else "other",
            self.template(exchange.path),
            exchange.path,
            status,
            code,
            seconds,
            exchange.request_id,
            trace_id,
            client[0] if client else None,
        )

    def template(self, path: str) -> str:
        """The route template of `path`, or "other"."""
        return self._templates.of(path)

    def count_limit(self, error: GatherError) -> None:
        """Count a refusal under its limit, if it was for the sake of one."""
        limit = error.facts.get("limit")
        if limit is not None:
            self.counters.add(f"gathernd_limit_refusals|{limit}")

    def count_refusal(self, error: GatherError, request_id: str, client: str | None) -> None:
        """Count a request that was refused before it could be read, so that its path is not known."""
        status = STATUS[error.code]
        self.counters.add(f"gathernd_errors|{error.code}")
        self.counters.add(f"gathernd_requests|other|unread|{status}")
        self.count_limit(error)
        self.log.tell(Seen("other", "unread", "", status, error.code, 0.0, request_id, None, client))

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
        self._add_up()
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
        for predicted, routes in self._routes.items():
            for route, taken in routes.items():
                if taken.count:
                    counters.add(f"gathernd_kernel_routes|{predicted}|{route}", taken.count)
                    if route == predicted:
                        counters.add(f"gathernd_route_predicted_seconds|{route}", taken.predicted)
                        counters.add(f"gathernd_route_measured_seconds|{route}", taken.measured)
                    taken.clear()
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
        return families(self.counters.totals() | self._shared)

    async def text(self) -> bytes:
        """The exposition text of GET /metrics."""
        if self.counters.shared:
            await asyncio.sleep(2 * FLUSH_S)
        shared = await asyncio.to_thread(self.common)
        self._shared = {GAUGE + name: number for name, number in shared.items()}
        return generate_latest(self._registry)


def outcome(exchange: Exchange, code: str | None) -> tuple[int, str | None]:
    """Status and error of a request that is over; where the protocol answered it by itself, it gave it another id."""
    status, cycle = exchange.status, exchange.cycle
    if cycle is not None and cycle.refusal is not None:
        exchange.request_id = cycle.refusal_id or exchange.request_id
        return status or STATUS[cycle.refusal], cycle.refusal
    return status, code
