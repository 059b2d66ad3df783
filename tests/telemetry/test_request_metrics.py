"""What the metrics make of single requests, driven without a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from app.api.route_table import template
from app.dispatch.choose_backend import Route as RouteName
from app.memory.budget import Budget, MemoryReservation
from app.telemetry import request_metrics, shared_counters
from app.telemetry.metric_definitions import BUCKETS
from app.telemetry.request_log import RequestLog
from app.telemetry.request_metrics import Metrics
from app.telemetry.served_request import STAGES, ServedRequest
from app.telemetry.shared_counters import CELLS, SLOT_BYTES, Counters, unshared_counters

PATH = "/gathernd"
WIDTH = len(BUCKETS) + 2 + len(STAGES)
"""Cells of a row of times: the buckets and one more, the sum, the stages."""


@dataclass
class HttpExchange:
    received: int = 5
    sent: int = 0
    refusal: Any = None


class RequestContext(ServedRequest):
    """As much of an exchange as metrics look at."""

    __slots__ = ("exchange", "headers", "scope", "sent_key")

    def __init__(self, path: str = PATH, status: int = 200) -> None:
        super().__init__(1.0, 100.0, MemoryReservation(Budget(1 << 20)))
        self.method, self.path, self.status, self.number = "POST", path, status, 1
        self.exchange: Any = HttpExchange()
        self.headers: dict[bytes, bytes] = {}
        self.scope: dict[str, Any] = {}
        self.sent_key: bytes | None = None
        self.given_id = "id"


def known() -> Metrics:
    return Metrics(unshared_counters(), RequestLog(0), template)


def gathered(route: RouteName = "loop", path: str = PATH) -> Any:
    context = RequestContext(path=path)
    context.start, context.parsed, context.kernel, context.kernel_end = 1.0, 1.5, 1.75, 1.875
    context.gathered = context.kernel_end
    context.route = route
    return context


def total(of: Metrics, prefix: str) -> dict[str, float]:
    found = of.counters.totals()
    return {
        name[len(prefix) + 1 :]: number for name, number in found.items() if name.startswith(f"{prefix}|") and number
    }


def now_is(monkeypatch: pytest.MonkeyPatch, now: float) -> None:
    monkeypatch.setattr(request_metrics, "perf_counter", lambda: now)


def looked_up(name: str) -> Any:
    context = gathered()
    context.tensor = name
    return context


@pytest.mark.usefixtures("compiled")  # the plain function leaves every request to `count`
def test_lookups_are_counted_by_name_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_metrics, "MOST_TENSORS", 3)
    memory = memoryview(bytearray(SLOT_BYTES))
    found = Metrics(Counters(memory, 0), RequestLog(0), template)
    for turn in range(30):
        context = looked_up(f"t{turn % 6}")
        found.begin()
        if turn % 2:
            now_is(monkeypatch, 1.000_5)
            context.parsed = context.kernel = context.gathered = 1.0
            assert found.count_answered(context, 7)
        found.count(context, None)
    found.begin()
    found.count(gathered(), None)
    assert total(found, "gathernd_tensor_lookups") == {"t0": 5, "t1": 5, "t2": 5, "other": 15}
    # A worker that takes over the slot goes on with the names that are there.
    successor = Metrics(Counters(memory, 0), RequestLog(0), template)
    for name in ("new", "t2"):
        successor.begin()
        successor.count(looked_up(name), None)
    assert total(successor, "gathernd_tensor_lookups") == {"t0": 5, "t1": 5, "t2": 6, "other": 16}


def test_an_answer_that_could_not_be_written_is_counted_once_and_as_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    found = known()
    context = gathered()
    now_is(monkeypatch, 1.000_5)
    context.parsed = context.kernel = context.gathered = 1.0
    found.begin()
    assert found.count_answered(context, 7)
    found.count(context, "internal")
    assert total(found, "gathernd_requests") == {f"POST|{PATH}|200": 1}
    assert total(found, "gathernd_errors") == {"internal": 1}
    assert found.gauges["gathernd_requests_in_flight"]() == 0
    assert found.counters.totals()["gathernd_sent_bytes"] == 7


def test_a_full_slot_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shared_counters._SPARE + WIDTH <= CELLS  # compiled code writes that far without looking
    monkeypatch.setattr(shared_counters, "_SPARE", 5)
    found = known()
    before = bytes(found.counters.slot.header), found.counters.slot.name(0)
    for turn in range(3):
        found.begin()
        found.count(gathered(path=f"/{turn}"), None)
    assert found.counters.totals()["gathernd_received_bytes"] == 15
    assert (bytes(found.counters.slot.header)[:32], found.counters.slot.name(0)) == (before[0][:32], before[1])
