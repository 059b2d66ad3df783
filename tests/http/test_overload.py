"""The answers of a service that is too busy, not ready, too late, or broken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from itertools import islice
from time import sleep

import httpx
import pytest

from tests.http.conftest import Start
from tests.http.faulty_app import SECRET
from tests.http.held import faulty, held, metric, until, wait_for_queue
from tests.http.raw import TINY, Wire, request
from tests.http.server import Server

MIB = 1 << 20


def tiny(server: Server, **headers: str) -> httpx.Response:
    with server.client() as client:
        return client.post("/gathernd", content=TINY, headers=headers)


def first_answers(asked: Sequence[Future[httpx.Response]], count: int) -> list[httpx.Response]:
    """The first answers that come, so many of them."""
    return [future.result() for future in islice(as_completed(asked, 60), count)]


def test_a_full_queue_is_overloaded_and_what_it_holds_is_answered(start: Start) -> None:
    flags = ("--threads", "1", "--max-queue", "1", "--loop-max-us", "0", "--queue-timeout", "100")
    with start(*flags, command=faulty("held")) as server, ThreadPoolExecutor(5) as callers:
        with held(server):
            asked = [callers.submit(tiny, server) for _ in range(5)]
            refused = first_answers(asked, 3)
            assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {(503, "overloaded")}
        assert sorted(future.result().status_code for future in asked) == [200, 200, 503, 503, 503]
        assert tiny(server).status_code == 200  # and later there is room again


def test_a_request_that_waits_past_the_deadline_is_refused(start: Start) -> None:
    flags = ("--threads", "1", "--max-queue", "8", "--loop-max-us", "0", "--deadline", "1")
    with start(*flags, command=faulty("held")) as server, ThreadPoolExecutor(3) as callers:
        with held(server):
            first = callers.submit(tiny, server)
            wait_for_queue(server, 1)
            late = [callers.submit(tiny, server) for _ in range(2)]
            refused = first_answers(late, 2)
        assert {(answer.status_code, answer.json()["code"]) for answer in refused} == {(503, "deadline_exceeded")}
        assert first.result().status_code == 200


@pytest.fixture(scope="module")
def slow(start: Start) -> Iterator[Server]:
    """One thread on which gathers can be held, and room for one more to wait."""
    flags = ("--threads", "1", "--max-queue", "1", "--loop-max-us", "0", "--max-requests", "4")
    with start(*flags, "--queue-timeout", "100", command=faulty("held")) as server:
        yield server


def test_a_caller_that_will_not_wait_is_told_so_before_its_turn_comes(slow: Server) -> None:
    with Wire(slow) as first, Wire(slow) as second:
        with held(slow):
            first.send(request(TINY))
            wait_for_queue(slow, 1)
            second.send(request(TINY, "X-Gathernd-Timeout: 0.1"))
            answer = second.read()
            assert (answer.status, answer.json()["code"]) == (503, "deadline_exceeded")
            assert int(answer.headers["retry-after"]) >= 1
            assert metric(slow, "gathernd_queue_depth") == 1  # the first one still runs
        assert first.read().status == 200
        second.send(request(TINY, "X-Gathernd-Timeout: 10"))
        assert second.read().status == 200


@pytest.mark.parametrize("timeout", ["soon", "-1", "", "1s", "nan", "1e3", "0x1", "1.", "9999999999"])
def test_a_timeout_that_is_no_number_of_seconds_is_refused(server: Server, timeout: str) -> None:
    answer = tiny(server, **{"x-gathernd-timeout": timeout})
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"pointer": "/x-gathernd-timeout"}]


def test_a_timeout_of_nothing_is_past_and_a_long_one_is_cut_to_the_services_own(server: Server) -> None:
    for _ in range(2):  # the second time the header is known
        assert tiny(server, **{"x-gathernd-timeout": "0"}).json()["code"] == "deadline_exceeded"
        assert tiny(server, **{"x-gathernd-timeout": "999999999.5"}).status_code == 200


def test_the_inference_protocol_has_the_same_timeout(server: Server) -> None:
    path = "/v2/models/gathernd/infer"
    inputs = [
        {"name": "data", "datatype": "INT8", "shape": [2], "data": [7, 8]},
        {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [1]},
    ]
    client = httpx.Client(base_url=server.url, trust_env=False, timeout=60)
    with client:
        late = client.post(path, json={"inputs": inputs}, headers={"x-gathernd-timeout": "0"})
        assert (late.status_code, late.json()["code"]) == (503, "deadline_exceeded")
        late = client.post(path, json={"inputs": inputs, "parameters": {"timeout": 1}})
        assert (late.status_code, late.json()["code"]) == (503, "deadline_exceeded")
        assert client.post(path, json={"inputs": inputs}, headers={"x-gathernd-timeout": "9"}).status_code == 200


def test_a_request_waits_for_a_thread_no_longer_than_it_may(start: Start) -> None:
    flags = ("--threads", "1", "--max-queue", "8", "--loop-max-us", "0", "--queue-timeout", "1")
    with start(*flags, command=faulty("held")) as server, ThreadPoolExecutor(3) as callers:
        with held(server):
            first = callers.submit(tiny, server)
            wait_for_queue(server, 1)
            late = [callers.submit(tiny, server) for _ in range(2)]
            refused = [answer.json() for answer in first_answers(late, 2)]
        assert {(body["code"], body["limit"]) for body in refused} == {("overloaded", "queue_timeout")}
        assert first.result().status_code == 200


def test_more_requests_than_may_be_under_way_are_refused_and_probes_answered(slow: Server) -> None:
    stalled = request(b"", f"Content-Length: {MIB}", "Expect: 100-continue", length=False)
    with Wire(slow) as one, Wire(slow) as two, Wire(slow) as three, Wire(slow) as four, Wire(slow) as five:
        for wire in (one, two, three, four):
            wire.send(stalled)
            assert wire.read().status == 100  # it is under way: else a scrape might take its place
            wire.send(b"{")
        until(lambda: metric(slow, "gathernd_requests_in_flight") >= 5)  # and the one that asks
        five.send(request(TINY))
        answer = five.read()
        assert (answer.status, answer.json()["code"]) == (503, "overloaded")
        assert (answer.json()["limit"], answer.json()["maximum"]) == ("requests", 4)
        client = slow.shared_client()
        assert client.get("/tensors").json()["limit"] == "requests"
        assert client.get("/livez").status_code == client.get("/readyz").status_code == 200
    until(lambda: tiny(slow).status_code == 200)


def test_the_callers_deadline_ends_the_wait_for_a_body_and_the_services_own_does_not(start: Start) -> None:
    with start("--deadline", "2") as server:
        body = TINY + b" " * 100_000
        with Wire(server) as patient, Wire(server) as hurried:
            patient.send(request(body)[:-50_000])
            hurried.send(request(body, "X-Gathernd-Timeout: 0.1")[:-50_000])
            answer = hurried.read()
            assert (answer.status, answer.json()["code"]) == (503, "deadline_exceeded")
            assert int(answer.headers["retry-after"]) >= 1
            assert hurried.closed()
            sleep(2.5)
            patient.send(b" " * 50_000)
            assert patient.read().status == 200


def test_a_service_that_is_starting_says_so_and_what_it_waits_for(start: Start) -> None:
    with start(command=faulty("starting"), ready=False) as server, server.client() as client:
        for path in ("/gathernd", "/gather"):
            answer = client.post(path, content=TINY)
            assert answer.json()["code"] == "not_ready"
        until(lambda: "kernels" not in client.get("/readyz").json()["detail"])
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["detail"].endswith("waiting for: a kernel that never comes")
        assert client.get("/livez").status_code == 200


@pytest.fixture(scope="module")
def broken(start: Start) -> Iterator[Server]:
    with start(command=faulty("broken"), tracebacks=True) as server:
        yield server


@pytest.mark.parametrize("path", ["/gathernd", "/gather"])
def test_a_failing_kernel_is_an_internal_error_and_shows_no_traceback(broken: Server, path: str) -> None:
    sent = TINY if path == "/gathernd" else TINY.replace(b"[1,1]", b"[1]")
    answer = broken.shared_client().post(path, content=sent, headers={"x-request-id": f"mine-{path[1:]}"})
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal"
    assert SECRET not in answer.text
    log = broken.log_text()
    assert f"mine-{path[1:]}" in log
    assert SECRET in log
    assert broken.shared_client().get("/readyz").status_code == 200


def test_a_failure_of_the_control_plane_has_the_same_shape(broken: Server) -> None:
    answer = broken.shared_client().get("/broken")
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal"
    assert SECRET not in answer.text
    assert SECRET in broken.log_text()


def base64_body(size: int) -> bytes:
    """A JSON request of about `size` bytes."""
    text = "AAAA" * (size // 4)
    return (
        b'{"data":{"dtype":"int8","shape":[%d],"base64":"%s"},"indices":{"dtype":"int64","shape":[1,1],"values":[0]}}'
        % (
            3 * (size // 4),
            text.encode(),
        )
    )


@pytest.fixture(scope="module")
def small_budget(start: Start) -> Iterator[Server]:
    with start("--memory-budget", "8MiB", "--body-timeout", "600") as server:
        yield server


def test_a_request_that_can_never_fit_the_budget_is_too_large(small_budget: Server) -> None:
    answer = small_budget.shared_client().post("/gathernd", content=base64_body(9 * MIB))
    assert answer.json()["code"] == "payload_too_large"
    assert (answer.json()["limit"], answer.json()["maximum"]) == ("memory_budget", 8 * MIB)


def test_a_stalled_upload_takes_the_budget_of_large_requests_and_not_of_small_ones(small_budget: Server) -> None:
    client = small_budget.shared_client()
    body = base64_body(4 * MIB)  # and the 3 MiB of its items
    with Wire(small_budget) as stalled:
        stalled.send(request(body, "Expect: 100-continue")[: -len(body)])
        assert stalled.read().status == 100  # it has what it takes of the budget before the next one comes
        stalled.send(body[: 4 * MIB - 1000])
        # Until what was sent has been read: beside another large request it would be refused itself.
        until(lambda: metric(small_budget, "gathernd_memory_used_bytes") >= 3 * MIB)
        assert client.post("/gathernd", content=body).json()["code"] == "overloaded"
        for _ in range(20):
            assert client.post("/gathernd", content=TINY).status_code == 200
    # The budget comes back with the connection's end, long before the timeout of bodies.
    until(lambda: client.post("/gathernd", content=body).status_code == 200)
