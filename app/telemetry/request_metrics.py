"""Count each request when it has finished, in memory that other processes can read.

The name of a cell (see `shared_counters`) is the metric's name and its labels, joined by "|".
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from app.bounded_cache import BoundedCache
from app.errors import CATALOGUE, GatherError
from app.telemetry import increments
from app.telemetry.increments import HEADER_TEMPLATE_AT, add, answer
from app.telemetry.metric_definitions import BUCKETS, METHODS, MOST_TENSORS, OTHER_TENSORS, REQUEST_SECONDS
from app.telemetry.prometheus_text import Measured, families, measure_processes, process_families
from app.telemetry.request_log import RequestLog, RequestRecord
from app.telemetry.served_request import STAGES, ServedRequest
from app.telemetry.shared_counters import GAUGE, Counters, unshared_counters
from app.telemetry.tensor_change_log import Caller, Change, ChangeLog
from app.telemetry.trace_context import trace_id_of
from app.telemetry.tracing import Tracing

_REMEMBERED: Final = 4096
"""Maximum number of paths whose cells are cached: paths contain names of models, which clients can invent."""
_LOOKUPS: Final = "gathernd_tensor_lookups"
_Kind = tuple[str, str, str | None, str]
"""The gathers that share their cells: method, path, route, and the label of the tensor or ""."""
_SCRAPE_DELAY_S: Final = 0.02
"""Seconds that a scrape waits for other processes, which count a large response only after it has been sent."""


class Metrics(Collector):
    """Counts and logs requests. If `tracing` is given, also exports a span for each request.

    `log` receives the requests that failed, or all requests if it is an access log. `template` maps a path to the route
    template under which it is counted, or to "other" for an unknown path.

    `gauges` are read in every process and summed. The values of other processes are as old as their last `publish`.
    `common` returns the gauges that are the same in every process. It may block, so it is called in a thread.
    `unsummed` holds more gauges that are the same in every process, each with its own function. `key_label` maps the
    SHA-256 of an API key to the key's label in the log.

    A gather is counted with a single call that increments its cells by address (see `increments`).
    """

    def __init__(
        self,
        counters: Counters | None,
        log: RequestLog,
        template: Callable[[str], str],
        tracing: Tracing | None = None,
    ) -> None:
        self.counters = counters or unshared_counters()
        self.log = log
        self._tracing = tracing
        self._records_each = log.access or tracing is not None
        self.changes = ChangeLog()
        self.template = template
        self.gauges: dict[str, Callable[[], float]] = {
            "gathernd_processes": lambda: 1,
            "gathernd_requests_in_flight": lambda: self._in_flight,
        }
        self.common: Callable[[], Mapping[str, float]] = dict
        self.unsummed: dict[str, Callable[[], float]] = {}
        self.key_label: Callable[[bytes | None], str | None] = lambda _: None
        self._shared: dict[str, float] = {}
        self._processes: Measured = {}
        self._tensors = self.counters.labels(_LOOKUPS)
        self._in_flight = 0
        self.begun = 0
        """Number of requests of every kind in this process since its startup."""
        self._received = self.counters.cell("gathernd_received_bytes")
        self._sent = self.counters.cell("gathernd_sent_bytes")
        self._values = np.asarray(self.counters.values)
        self._request_cells: BoundedCache[tuple[str, str, int], tuple[int, int]] = BoundedCache(_REMEMBERED)
        self._cell_tables: BoundedCache[_Kind, tuple[int, NDArray[np.int64]]] = BoundedCache(_REMEMBERED)

    def begin(self) -> int:
        """Count a new request as in flight until `count` is called for it.

        Returns the number of requests in flight, including this one.
        """
        self.begun += 1
        self._in_flight = running = self._in_flight + 1
        return running

    def count_answered(self, context: ServedRequest, sent: int) -> bool:
        """Count a gather and fill in HEADER_TEMPLATE. The gather's response, of `sent` bytes, is written next.

        If the request took long or the server has refused it, does nothing and returns False.
        """
        exchange = context.exchange
        if exchange.refusal is not None:
            return False
        table = self._table_of(context)
        start, parsed, kernel, done = context.start, context.parsed, context.kernel, context.gathered
        now = perf_counter()
        number, received, tell = context.number, exchange.received, answer.run
        if not tell(HEADER_TEMPLATE_AT, table, number, start, parsed, kernel, done, now, received, sent):
            return False
        context.finished = now
        return True

    def count(self, context: ServedRequest, code: str | None) -> None:
        """Count, trace and log a finished request. `code` is the code of its error, if any.

        Call this from the event loop.
        """
        self._in_flight -= 1
        context.caller = None  # `caller` refers to the request and its body
        exchange = context.exchange
        if exchange.refusal is not None:  # the server ended the request, with a response under this id
            code = exchange.refusal
            context.status = context.status or CATALOGUE[exchange.refusal].status
            context.request_id = exchange.refusal_id or context.request_id
        if not context.finished:
            context.finished = perf_counter()
            self._count_outcome(context, code)
        elif code is not None:  # `count_answered` has already counted it, but its response could not be written
            self.counters.add(f"gathernd_errors|{code}")
        if self._records_each or code is not None:
            self._record(context, code)

    def _count_outcome(self, context: ServedRequest, code: str | None) -> None:
        exchange, seconds = context.exchange, context.finished - context.start
        if code is None and context.status == 200 and context.route is not None:
            table = self._table_of(context)
            start, parsed, kernel, done = context.start, context.parsed, context.kernel, context.kernel_end
            add.run(table, start, parsed, kernel, done, context.finished, exchange.received, exchange.sent)
            return
        if code is not None:
            self.counters.add(f"gathernd_errors|{code}")
            if code == "deadline_exceeded" and context.callers_deadline:
                self.counters.add(f"gathernd_caller_deadlines|{self.template(context.path)}")
        values = self.counters.values
        requests, times = self._cells_of(context.method, context.path, context.status)
        values[requests] += 1
        values[times + bisect_left(BUCKETS, seconds)] += 1
        values[times + len(BUCKETS) + 1] += seconds
        values[self._received] += exchange.received
        values[self._sent] += exchange.sent

    def _record(self, context: ServedRequest, code: str | None) -> None:
        """Create the span and write the log line of a finished request, if tracing and the log require them."""
        method, route = context.method if context.method in METHODS else "other", self.template(context.path)
        if self._tracing is None:
            trace_id = trace_id_of(context.headers)
        else:
            named = "_OTHER" if method == "other" else method
            trace_id = self._tracing.record(context, named, route, context.status, code, context.finished)
        if code is not None or self.log.access:
            seconds, caller = context.finished - context.start, self.caller(context)
            self.log.write(
                RequestRecord(
                    method,
                    route,
                    context.path,
                    context.status,
                    code,
                    seconds,
                    caller.request_id,
                    trace_id,
                    caller.client,
                    caller.key,
                )
            )

    def caller(self, context: ServedRequest) -> Caller:
        """Return the sender of a request, for the log of changes."""
        client = context.scope.get("client")
        return Caller(context.request_id, self.key_label(context.sent_key), client[0] if client else None)

    def log_change(self, context: ServedRequest, change: Change) -> None:
        """Write a line about a change that a request has made, or count it."""
        self.changes.write(change, self.caller(context))

    def count_limit(self, error: GatherError) -> None:
        """If an error names a limit, count a refusal for that limit."""
        limit = error.facts.get("limit")
        if limit is not None:
            self.counters.add(f"gathernd_limit_refusals|{limit}")

    def count_lookup(self, tensors: Sequence[str]) -> None:
        """Count a completed lookup by its number of features, and count each feature by its tensor."""
        self.counters.add(f"gathernd_lookups|{1 << max(len(tensors) - 1, 0).bit_length()}")
        for tensor in tensors:
            self.counters.add(f"{_LOOKUPS}|{self._tensor_label(tensor)}")

    def count_refusal(self, error: GatherError, request_id: str, client: str | None) -> None:
        """Count a request that the server refused before reading it. Its path is unknown."""
        status = CATALOGUE[error.code].status
        self.counters.add(f"gathernd_errors|{error.code}")
        self.counters.add(f"gathernd_requests|other|unread|{status}")
        self.count_limit(error)
        self.log.write(RequestRecord("other", "unread", "", status, error.code, 0.0, request_id, None, client, None))

    def _cells_of(self, method: str, path: str, status: int) -> tuple[int, int]:
        """Return two cells for a method, path and status: the number of requests, and the first cell of their times."""
        place = self._request_cells.get((method, path, status))
        if place is None:
            template = self.template(path)
            shown = method if method in METHODS else "other"
            names = [f"{REQUEST_SECONDS[0]}|{template}|{bound}" for bound in (*BUCKETS, "+Inf", "sum")]
            names += [f"gathernd_stage_seconds|{template}|{stage}" for stage in STAGES]
            counters = self.counters
            place = counters.cell(f"gathernd_requests|{shown}|{template}|{status}"), counters.adjacent_cells(names)
            self._request_cells[method, path, status] = place
        return place

    def _tensor_label(self, name: str) -> str:
        """Return the label for counting lookups in tensor `name`, without its version, or "" if `name` is empty."""
        name = name.partition("@")[0]
        if name and name not in self._tensors:
            if len(self._tensors) >= MOST_TENSORS:
                return OTHER_TENSORS
            self._tensors.add(name)
        return name

    def _table_of(self, context: ServedRequest) -> int:
        """Return the address of the table that holds the addresses of a gather's cells."""
        tensor = context.tensor
        if tensor and tensor not in self._tensors:
            tensor = self._tensor_label(tensor)
        kind = context.method, context.path, context.route, tensor
        found = self._cell_tables.get(kind)
        if found is None:
            found = self._cell_tables[kind] = self._new_cell_table(*kind)
        return found[0]

    def _new_cell_table(self, method: str, path: str, route: str | None, tensor: str) -> tuple[int, NDArray[np.int64]]:
        cell = self.counters.cell
        cells: list[int | None] = [None] * increments.CELLS
        cells[increments.REQUESTS], cells[increments.TIMES] = self._cells_of(method, path, 200)
        cells[increments.ROUTES] = cell(f"gathernd_kernel_routes|{route}")
        cells[increments.RECEIVED], cells[increments.SENT] = self._received, self._sent
        cells[increments.MEASURED] = cell(f"gathernd_route_measured_seconds|{route}")
        if tensor:
            cells[increments.LOOKUPS] = cell(f"{_LOOKUPS}|{tensor}")
        first = self._values.ctypes.data
        addresses = np.array([0 if place is None else first + 8 * place for place in cells], np.int64)
        return addresses.ctypes.data, addresses

    def publish(self) -> None:
        """Make this process's gauges visible to other processes."""
        for name, read in self.gauges.items():
            self.counters.set_gauge(GAUGE + name, read())

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all processes, as Prometheus's collector interface requires."""
        self.publish()
        yield from families(self.counters.totals() | self._shared)
        yield from process_families(self._processes)

    async def text(self) -> bytes:
        """Return the exposition text for GET /metrics."""
        if self.counters.shared:
            await asyncio.sleep(_SCRAPE_DELAY_S)
        shared = await asyncio.to_thread(self.common)
        alone = {name: read() for name, read in self.unsummed.items()}
        self._shared = {GAUGE + name: number for name, number in (*shared.items(), *alone.items())}
        self._processes = await asyncio.to_thread(measure_processes, self.counters.processes())
        return generate_latest(self)
