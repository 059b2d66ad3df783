"""The metrics equal the traffic, with one process and with several, and through the death of one."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.api.schemas import examples
from app.operators.registry import GRADIENTS, OPERATORS
from app.settings import Settings
from app.telemetry.metric_definitions import (
    PROCESS_COUNTERS,
    PROCESS_GAUGES,
)
from app.tensors.lookup_call import LOOKUP
from tests.http.conftest import Start
from tests.http.forms import int64
from tests.http.held import until
from tests.http.server import Server
from tests.workers.load import BODY, CONTENT, ask_once, connected, request

pytestmark = pytest.mark.long

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
OUT_OF_BOUNDS = json.dumps({**BODY, "indices": int64([1, 2], [0, 2])}).encode()
DEEP = json.dumps({**BODY, "data": {"dtype": "int8", "shape": [1] * 33, "values": [1]}}).encode()
INPUT = {"name": "data", "datatype": "FP32", "shape": [2], "data": [1, 2]}
INDEX = {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [1]}
INFER = json.dumps({"inputs": [INPUT, INDEX]}).encode()
LARGE = json.dumps(
    {"data": {"dtype": "int8", "values": [[100] * 4096]}, "indices": int64([100, 1], [0] * 100)}
).encode()
"""A gather whose answer has more than a megabyte."""
ROW = int64([1], [1])
LOOKED_UP = json.dumps({"features": [{"tensor": "metrics", "indices": ROW}] * 3}).encode()
GRADIENT = {"grad_output": {"dtype": "float32", "values": [1]}, "data_shape": [2]}
ROW_GRADIENT = json.dumps({**GRADIENT, "indices": ROW}).encode()
TUPLE_GRADIENT = json.dumps({**GRADIENT, "indices": int64([1, 1], [1])}).encode()


def shown(operator: str, to: str = "") -> bytes:
    """The first request of an operator that OpenAPI shows, sent to it or to another."""
    (_, sent, _) = next(iter(examples.REQUESTS[operator].values()))
    return request(path=f"/{to or operator}", body=json.dumps(sent).encode())


# What is sent, how often, and under which method, template, status and error it is to be counted.
TRAFFIC: list[tuple[bytes, int, tuple[str, str, int, str | None]]] = [
    (request(), 31, ("POST", "/gathernd", 200, None)),
    (request().replace(b"\r\n", b"\r\nx-request-id: own\r\n", 1), 6, ("POST", "/gathernd", 200, None)),
    (request(body=OUT_OF_BOUNDS), 11, ("POST", "/gathernd", 422, "index_out_of_bounds")),
    (request(body=b"{"), 5, ("POST", "/gathernd", 400, "malformed_request")),
    (request(body=DEEP), 4, ("POST", "/gathernd", 422, "limit_exceeded")),
    (request(path="/gather"), 3, ("POST", "/gather", 200, None)),
    (shown("gather_elements"), 2, ("POST", "/gather_elements", 200, None)),
    (shown("gather_block_quantized"), 2, ("POST", "/gather_block_quantized", 200, None)),
    (shown("scatternd"), 4, ("POST", "/scatternd", 200, None)),
    (shown("scatter_elements", to="scatternd"), 2, ("POST", "/scatternd", 422, "invalid_field")),
    (shown("scatter_elements"), 5, ("POST", "/scatter_elements", 200, None)),
    (request(path="/gather/backward", body=ROW_GRADIENT), 3, ("POST", "/gather/backward", 200, None)),
    (request(path="/gathernd/backward", body=TUPLE_GRADIENT), 2, ("POST", "/gathernd/backward", 200, None)),
    (request(path="/lookup", body=LOOKED_UP), 6, ("POST", "/lookup", 200, None)),
    (request("GET", "/gathernd", b""), 4, ("GET", "/gathernd", 405, "method_not_allowed")),
    (request("OPTIONS", "/gathernd", b""), 2, ("OPTIONS", "/gathernd", 204, None)),
    (request("GET", "/livez", b""), 6, ("GET", "/livez", 200, None)),
    (request("GET", "/errors/internal", b""), 2, ("GET", "/errors/{code}", 200, None)),
    (request("GET", "/no/such/route?x=1", b""), 3, ("GET", "other", 404, "not_found")),
    (request("GET", "/tensors/none", b""), 3, ("GET", "/tensors/{name}", 404, "tensor_not_found")),
    (request(path="/v2/models/gathernd/infer", body=INFER), 9, ("POST", "/v2/models/{name}/infer", 200, None)),
    (request(path="/v2/models/x/infer", body=INFER), 2, ("POST", "/v2/models/{name}/infer", 404, "model_not_found")),
]
CALCULATING = {"/v2/models/{name}/infer", *(f"/{name}" for name in (*OPERATORS, LOOKUP))}
CALCULATING |= {row.path for row in GRADIENTS.values()}


@pytest.fixture(scope="module", params=[pytest.param("1", marks=pytest.mark.slow), "2"])
def server(request: pytest.FixtureRequest, start: Start) -> Iterator[Server]:
    with start("--workers", request.param) as running:
        path = f"{running.url}/tensors/metrics?dtype=int8&shape=2,1"
        headers = {"content-type": "application/octet-stream"}
        httpx.put(path, content=b"ab", headers=headers, trust_env=False, timeout=60).raise_for_status()
        yield running


def scraped(server: Server) -> bytes:
    answer = httpx.get(f"{server.url}/metrics", trust_env=False, timeout=60)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return answer.content


def scrape(server: Server) -> Samples:
    return samples_of(scraped(server))


def samples_of(text: bytes) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def change(before: Samples, after: Samples, name: str) -> dict[tuple[str, ...], float]:
    """By how much the samples of a name rose, by the values of their labels in the order of the labels' names."""
    found = {}
    for (sample, labels), number in after.items():
        if sample == name:
            rise = number - before.get((sample, labels), 0.0)
            assert rise >= 0, (sample, labels)
            if rise:
                found[tuple(value for _, value in labels)] = rise
    return found


def send(server: Server) -> None:
    """All of TRAFFIC, mixed, over several connections, so that every worker has a part in it."""
    rounds = max(times for _, times, _ in TRAFFIC)
    with connected(server.port, 8) as connections:
        for turn in range(rounds):
            for place, (content, times, (_, _, status, _)) in enumerate(TRAFFIC):
                if turn < times:
                    answer = connections[(turn + place) % 8].ask(content)
                    assert answer.status == status, (content, answer)
        for connection in connections:
            assert connection.ask(request("GET", "/livez", b"")).status == 200


def test_the_metrics_equal_the_traffic(server: Server) -> None:
    before = scrape(server)
    send(server)
    after = scrape(server)
    requests: Counter[tuple[str, ...]] = Counter()
    errors: Counter[tuple[str, ...]] = Counter()
    by_path: Counter[tuple[str, ...]] = Counter()
    for _, times, (method, path, status, code) in TRAFFIC:
        if times:
            requests[method, path, str(status)] += times
            by_path[(path,)] += times
            if code is not None:
                errors[(code,)] += times
    for counted in (requests, by_path):
        key = ("GET", "/livez", "200") if counted is requests else ("/livez",)
        counted[key] += 8
    requests["GET", "/metrics", "200"] += 1  # the scrape before; this one has not been answered yet
    by_path[("/metrics",)] += 1
    assert change(before, after, "gathernd_requests_total") == requests
    assert change(before, after, "gathernd_errors_total") == errors
    assert change(before, after, "gathernd_request_seconds_count") == by_path
    assert change(before, after, "gathernd_limit_refusals_total") == {("rank",): 4}
    calculated = {path for _, path, status in requests if status == "200" and path in CALCULATING}
    assert calculated == CALCULATING
    calls = sum(number for (_, path, status), number in requests.items() if status == "200" and path in CALCULATING)
    assert change(before, after, "gathernd_kernel_routes_total") == {("loop",): calls}
    assert change(before, after, "gathernd_lookups_total") == {("4",): 6}
    assert change(before, after, "gathernd_tensor_lookups_total") == {("metrics",): 18}
    measured = change(before, after, "gathernd_route_measured_seconds_total")
    assert set(measured) == {("loop",)}
    kernel = [
        number
        for (_, stage), number in change(before, after, "gathernd_stage_seconds_total").items()
        if stage == "kernel"
    ]
    assert measured[("loop",)] == pytest.approx(sum(kernel))
    received = sum(times * len(content.partition(b"\r\n\r\n")[2]) for content, times, _ in TRAFFIC)
    assert change(before, after, "gathernd_received_bytes_total") == {(): received}
    timings = change(before, after, "gathernd_stage_seconds_total")
    paths = {path for path, _ in timings}
    assert paths == CALCULATING
    spent = change(before, after, "gathernd_request_seconds_sum")
    for path in paths:
        assert 0 < sum(number for (known, _), number in timings.items() if known == path) <= spent[(path,)]


def test_bytes_sent_are_those_of_the_bodies(server: Server) -> None:
    first = scraped(server)
    with connected(server.port, 4) as connections:
        contents = [(request(), 5), (request("GET", "/docs/swagger-ui-bundle.js", b""), 1), (request(body=b"{"), 2)]
        sent = sum(len(connections[turn % 4].ask(content).body) for content, times in contents for turn in range(times))
    after = scrape(server)
    assert change(samples_of(first), after, "gathernd_sent_bytes_total") == {(): sent + len(first)}


@pytest.mark.parametrize("content", [CONTENT, LARGE], ids=["small", "large"])
def test_a_scrape_misses_nothing_that_another_process_has_answered(server: Server, content: bytes) -> None:
    with connected(server.port, 8) as connections:
        before = samples_of(connections[0].ask(request("GET", "/metrics", b"")).body)
        for turn in range(1, 13):
            assert connections[turn % 8].ask(request(body=content)).status == 200
            after = samples_of(connections[(turn + 1) % 8].ask(request("GET", "/metrics", b"")).body)
            assert change(before, after, "gathernd_requests_total")["POST", "/gathernd", "200"] == turn


def test_what_is_refused_before_it_is_read_is_counted(server: Server) -> None:
    before = scrape(server)
    for _ in range(4):
        assert ask_once(server.port, b"NONSENSE\r\n\r\n").status == 400
    for _ in range(3):
        assert ask_once(server.port, request(cookie="x" * 70_000)).status == 431
    after = scrape(server)
    requests = change(before, after, "gathernd_requests_total")
    del requests["GET", "/metrics", "200"]
    assert requests == {("other", "unread", "400"): 4, ("other", "unread", "431"): 3}
    errors = {("malformed_request",): 4, ("header_too_large",): 3}
    assert change(before, after, "gathernd_errors_total") == errors
    assert change(before, after, "gathernd_limit_refusals_total") == {("header_bytes",): 3}


def test_a_request_that_is_never_whole_is_no_failure_of_the_service(server: Server) -> None:
    before = scrape(server)
    with connected(server.port, 2) as (leaves, breaks):
        leaves.socket.sendall(request()[:-10])
        head = b"PUT /tensors/left HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        breaks.socket.sendall(head + b"1\r\n{")
        until(lambda: in_flight(server) == 3, 20, "both and the one that asks are in flight")
        breaks.socket.sendall(b"nonsense\r\n")
        assert breaks.read().status == 400
    until(lambda: in_flight(server) == 1, 20, "nothing else is in flight")
    requests = change(before, scrape(server), "gathernd_requests_total")
    found = {key: count for key, count in requests.items() if key[0] != "GET"}
    assert found == {("POST", "/gathernd", "0"): 1, ("PUT", "/tensors/{name}", "400"): 1}


def in_flight(server: Server) -> float:
    sleep(0.3)  # so old the numbers of other processes may be
    return scrape(server)["gathernd_requests_in_flight", ()]


def test_a_label_is_never_what_a_client_made_up(server: Server) -> None:
    made_up = [f"/tensors/zz{number}" for number in range(20)] + [f"/zz/{number}" for number in range(20)]
    made_up += ["/tensors/zz%7Czz", "/zz|zz|zz", '/zz"\\\n'.replace("\n", "%0A"), "/tensors//zz", "/tensors/zz/content"]
    for path in made_up:
        ask_once(server.port, request("GET", path, b""))
    ask_once(server.port, request("DELETE", "/zz", b""))
    samples = scrape(server)
    assert not [key for key in samples if "zz" in str(key)]


def test_each_process_has_its_own_numbers_of_the_system(server: Server) -> None:
    processes = [server.process.pid, *server.workers()]
    samples = scrape(server)
    shown: dict[str, dict[str, float]] = {}
    for (name, labels), value in samples.items():
        if name.startswith("process_"):
            shown.setdefault(name, {})[dict(labels)["process"]] = value
    assert shown.keys() == {*PROCESS_GAUGES, *(f"{name}_total" for name in PROCESS_COUNTERS)}
    assert all(len(values) == len(processes) for values in shown.values())
    files = sorted(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in processes)
    opened = sorted(shown["process_open_fds"].values())
    assert all(abs(seen - now) <= 3 for seen, now in zip(opened, files, strict=True)), (opened, files)
    for name, least, most in (
        ("process_start_time_seconds", time() - 600, time() + 1),
        ("process_resident_memory_bytes", 2**24, 2**36),
        ("process_cpu_seconds_total", 0.0, 600.0),
    ):
        assert all(least <= value <= most for value in shown[name].values()), (name, shown[name])


def test_processes_connections_and_memory_are_summed(server: Server) -> None:
    with connected(server.port, 8):
        end = monotonic() + 60
        while (samples := scrape(server))["gathernd_connections", ()] != 9 and monotonic() < end:
            sleep(0.05)
    workers = int(samples["gathernd_processes", ()])
    assert workers == max(1, len(server.workers())) == samples["gathernd_processes_expected", ()]
    assert samples["gathernd_connections", ()] == 9
    assert samples["gathernd_memory_budget_bytes", ()] > 2**20
    assert samples["gathernd_memory_used_bytes", ()] == 0
    settings = Settings()
    assert samples["gathernd_queue_capacity", ()] == workers * (settings.threads + settings.max_queue)
    assert samples["gathernd_requests_limit", ()] == workers * settings.max_requests
    assert samples["gathernd_resident_tensors_limit", ()] == settings.max_tensors
    assert samples["gathernd_resident_bytes_free", ()] > 0


def test_counts_survive_the_death_and_the_restart_of_their_worker(server: Server) -> None:
    if len(server.workers()) < 2:
        pytest.skip("one process")
    before = scrape(server)
    gathers = 0
    for harm in (signal.SIGKILL, signal.SIGHUP):
        gathers += spread(server)
        old = set(server.workers())
        if harm == signal.SIGKILL:
            os.kill(min(old), harm)
        else:
            server.process.send_signal(harm)
        expected = 1 if harm == signal.SIGKILL else 0
        until(partial(has_two_workers, server, old, expected), 60, "two workers again")
        rise = change(before, scrape(server), "gathernd_requests_total")
        assert rise["POST", "/gathernd", "200"] == gathers
    gathers += spread(server)
    assert change(before, scrape(server), "gathernd_requests_total")["POST", "/gathernd", "200"] == gathers
    samples = scrape(server)
    assert samples["gathernd_processes", ()] == 2
    assert samples["gathernd_workers_started_total", ()] == 5
    assert samples["gathernd_workers_died_total", ()] == 1


def spread(server: Server) -> int:
    """Gathers over both workers; how many."""
    with connected(server.port, 10) as connections:
        answers = [connection.ask(request(body=CONTENT)) for connection in connections]
    assert {answer.status for answer in answers} == {200}
    assert len({answer.worker for answer in answers}) == 2
    return len(answers)


def has_two_workers(server: Server, old: set[int], left: int) -> bool:
    if len(old & set(server.workers())) != left or len(server.workers()) != 2:
        return False
    with connected(server.port, 8) as connections:
        return len({connection.ask(request("GET", "/livez", b"")).worker for connection in connections}) == 2


def late(timeout: str) -> bytes:
    """A request that is to be answered within so many seconds."""
    return request().replace(b"\r\n", f"\r\nx-gathernd-timeout: {timeout}\r\n".encode(), 1)


def test_a_deadline_of_the_callers_own_is_counted_apart(server: Server) -> None:
    """A caller who sets one that nobody can meet is no failure of the service."""
    before, path = scrape(server), ("path", "/gathernd")
    for _ in range(3):
        assert ask_once(server.port, late("0")).status == 503
    after = scrape(server)
    for name, label in [
        ("gathernd_errors_total", ("code", "deadline_exceeded")),
        ("gathernd_caller_deadlines_total", path),
    ]:
        assert after[name, (label,)] - before.get((name, (label,)), 0) == 3


def test_a_deadline_of_the_services_own_is_its_failure(start: Start) -> None:
    with start("--deadline", "1e-9") as server:
        for timeout in ("10", "0.000000002"):
            assert ask_once(server.port, late(timeout)).status == 503
        found = scrape(server)
    assert found["gathernd_errors_total", (("code", "deadline_exceeded"),)] == 2
    assert not any(name == "gathernd_caller_deadlines_total" for name, _ in found)


_OFTEN = (
    "import app.periodic_tasks as m; m.DAMAGE_INTERVAL_S = 0.05; m.DAMAGE_PAUSE_RATIO = 1; "
    "from gathernd_cli import main; main()"
)


@pytest.mark.slow
def test_damaged_tensors_are_counted_though_nobody_asks_for_them(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    flags = ("--store-dir", str(folder))
    options: dict[str, Any] = {"command": (sys.executable, "-c", _OFTEN, "serve")}
    content = bytes(range(256)) * 500
    damaged = ("gathernd_resident_tensors_damaged", ())
    with start(*flags, **options) as server:
        for name in ("flipped", "whole"):
            path = f"{server.url}/tensors/{name}?dtype=uint8&shape={len(content)}"
            types = {"content-type": "application/octet-stream"}
            assert httpx.put(path, content=content, headers=types, trust_env=False, timeout=60).status_code == 201
        assert scrape(server)[damaged] == 0
    kept = next(path for path in folder.rglob("*") if path.is_file() and content in path.read_bytes())
    with kept.open("r+b") as file:
        file.seek(kept.read_bytes().index(content) + 70_000)
        file.write(b"\xff\xff")
    with start(*flags, **options) as server:
        until(lambda: scrape(server)[damaged] == 1, 20, "the damage is counted")
        listed = httpx.get(f"{server.url}/tensors", trust_env=False, timeout=60).json()["tensors"]
        (name,) = (found["name"] for found in listed if found.get("damaged"))
        assert httpx.delete(f"{server.url}/tensors/{name}", trust_env=False).status_code == 204
        until(lambda: scrape(server)[damaged] == 0, 20, "it is gone")
