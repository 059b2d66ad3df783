"""Traces of a cluster: the spans of the shards that a request needs are children of the router's, in one trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from time import monotonic, sleep

import numpy as np
import pytest

from tests.cluster.running import Placed
from tests.http.conftest import Start
from tests.http.forms import int64
from tests.http.server import Server
from tests.http.test_traces import PARENT, QUICK, SAMPLED, TRACE, Collector, Span, collecting

TABLE = np.arange(40 * 3, dtype=np.float32).reshape(40, 3)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def router(start: Start, collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A router of two ranges on two shards, all of which tell the collector."""
    flags = "--kernel", "numpy", "--otlp-endpoint", collector.url
    path = tmp_path_factory.mktemp("map") / "map.json"
    with ExitStack() as stack:
        placed = Placed([stack.enter_context(start(*flags, environment=QUICK)) for _ in range(2)])
        placed.add("t", TABLE, ranges=2, replicas=1)
        placed.write(path)
        yield stack.enter_context(start("--cluster", str(path), *flags, environment=QUICK))


def spans(collector: Collector, mark: str, count: int) -> list[Span]:
    """The spans of requests with an id, once so many are here, the router's first."""
    end = monotonic() + 20
    while True:
        found = [span for span in collector.spans if span.attributes.get("gathernd.request_id") == mark]
        if len(found) >= count:
            assert len(found) == count
            return sorted(found, key=lambda span: span.begin)
        assert monotonic() < end, [span.name for span in collector.spans]
        sleep(0.02)


@pytest.mark.parametrize("route", ["/gathernd", "/lookup"])
@pytest.mark.parametrize("given", ["", SAMPLED])
def test_what_shards_do_is_in_the_span_of_the_router(
    router: Server, collector: Collector, route: str, given: str
) -> None:
    mark = f"{route.strip('/')}-{'given' if given else 'begun'}"
    headers = {"x-request-id": mark} | ({"traceparent": given, "tracestate": "other=1"} if given else {})
    body: dict[str, object] = {"data": {"tensor": "t"}, "indices": int64([2, 1], [0, 39])}
    if route == "/lookup":
        body = {"features": [{"tensor": "t", "indices": int64([2], [0, 39])}]}
    assert router.shared_client().post(route, json=body, headers=headers).status_code == 200
    own, *shards = spans(collector, mark, 3)
    assert (own.name, own.kind, own.attributes["http.route"]) == (f"POST {route}", 2, route)
    assert own.parent == (PARENT if given else "")
    if given:
        assert own.trace == TRACE
    assert [(span.name, span.parent, span.trace) for span in shards] == [("POST /gathernd", own.id, own.trace)] * 2
    instances = {span.service["service.instance.id"] for span in (own, *shards)}
    assert len(instances) == 3
    assert all(own.begin <= span.begin <= span.end <= own.end for span in shards)
    assert {"parse", "queue", "kernel", "encode"} == {
        span.name for span in collector.spans if span.parent == own.id and span.name != "POST /gathernd"
    }


def test_a_trace_that_is_not_sampled_is_not_sent_by_shards_either(router: Server, collector: Collector) -> None:
    client = router.shared_client()
    body = {"data": {"tensor": "t"}, "indices": int64([2, 1], [0, 39])}
    headers = {"x-request-id": "unsampled", "traceparent": f"{SAMPLED[:-1]}0"}
    assert client.post("/gathernd", json=body, headers=headers).status_code == 200
    assert client.post("/gathernd", json=body, headers={"x-request-id": "after"}).status_code == 200
    spans(collector, "after", 3)
    sleep(0.2)
    assert not [span for span in collector.spans if span.attributes.get("gathernd.request_id") == "unsampled"]
