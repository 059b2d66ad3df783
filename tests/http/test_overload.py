"""What clients are told by a service that is too busy, not ready, too late, or broken."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from time import monotonic, sleep
from typing import Any

import httpx
import pytest

from tests.http.conftest import Start
from tests.http.forms import int64, packed, tensor
from tests.http.odd_app import SECRET
from tests.http.raw import TINY, Wire, request
from tests.http.server import Server

MIB = 1 << 20


def metric(server: Server, name: str) -> float:
    """The number of the metric `name`, with its labels as they are written; 0 where nothing was counted."""
    lines = server.shared_client().get("/metrics").text.splitlines()
    found = [line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == name]
    return float(found[0]) if found else 0.0


def odd(how: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "tests.http.odd_app", how)


def tiny(server: Server, **headers: str) -> httpx.Response:
    with server.client() as client:
        return client.post("/gathernd", content=TINY, headers=headers)


def together(server: Server, count: int) -> list[httpx.Response]:
    """The answers to `count` requests sent at the same time."""
    answers: list[httpx.Response] = []
    threads = [threading.Thread(target=lambda: answers.append(tiny(server))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def test_a_full_queue_is_overloaded_and_what_it_holds_is_answered(start: Start) -> None:
    flags = ("--threads", "1", "--max-queue", "1", "--loop-max-us", "0")
    with start(*flags, command=odd("slow")) as server:
        answers = together(server, 5)
        assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503, 503]
        assert {answer.json()["code"] for answer in answers if answer.status_code == 503} == {"overloaded"}
        assert tiny(server).status_code == 200  # and later there is room again


def test_a_request_that_waits_past_the_deadline_is_refused(start: Start) -> None:
    flags = ("--threads", "1", "--max-queue", "8", "--loop-max-us", "0", "--deadline", "0.5")
    with start(*flags, command=odd("slow")) as server:
        answers = together(server, 3)
        assert sorted(answer.status_code for answer in answers) == [200, 503, 503]
        assert {answer.json()["code"] for answer in answers if answer.status_code == 503} == {"deadline_exceeded"}


@pytest.mark.parametrize(("dtype", "value"), [("int64", "1"), ("bool", "true")])
def test_the_items_read_out_of_json_and_the_text_written_count_too(start: Start, dtype: str, value: str) -> None:
    # 1 MiB of text: as int64 the items are too much for the budget, as bool the text of the answer is.
    count = (1 << 20) // (len(value) + 1)
    rows = 0 if dtype == "int64" else 3
    data = f'{{"dtype":"{dtype}","shape":[1,{count}],"values":[{",".join([value] * count)}]}}'
    indices = f'{{"dtype":"int64","shape":[{rows},1],"values":{[0] * rows}}}'
    with start("--memory-budget", "4MiB") as server, server.client() as client:
        answer = client.post("/gathernd", content=f'{{"data":{data},"indices":{indices}}}', timeout=60)
        assert answer.status_code == 413
        assert answer.json()["limit"] == "memory_budget"
        assert tiny(server).status_code == 200


def test_no_request_can_meet_an_impossible_deadline(start: Start) -> None:
    with start("--deadline", "0.0000001") as server:
        answer = tiny(server)
        assert answer.json()["code"] == "deadline_exceeded"
        assert int(answer.headers["retry-after"]) >= 1
        assert "kernel" not in answer.headers["server-timing"] or answer.status_code == 503


def test_a_service_that_is_starting_says_so_and_what_it_waits_for(start: Start) -> None:
    with start(command=odd("starting"), ready=False) as server, server.client() as client:
        for path in ("/gathernd", "/gather"):
            answer = client.post(path, content=TINY)
            assert answer.json()["code"] == "not_ready"
        end = monotonic() + 60
        while "kernels" in client.get("/readyz").json()["detail"] and monotonic() < end:
            sleep(0.05)
        answer = client.get("/readyz")
        assert answer.status_code == 503
        assert answer.json()["detail"].endswith("waits for: a kernel that never comes")
        assert client.get("/livez").status_code == 200


@pytest.fixture(scope="module")
def broken(start: Start) -> Iterator[Server]:
    with start(command=odd("broken"), tracebacks=True) as server:
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


def test_a_failure_of_the_control_plane_has_the_same_shape(broken: Server) -> None:
    answer = broken.shared_client().get("/broken")
    assert answer.status_code == 500
    assert answer.json()["code"] == "internal"
    assert SECRET not in answer.text
    assert SECRET in broken.log_text()


def test_a_service_that_failed_once_goes_on(broken: Server) -> None:
    for _ in range(3):
        assert broken.shared_client().post("/gathernd", content=TINY).status_code == 500
    assert broken.shared_client().get("/readyz").status_code == 200
    assert broken.process.poll() is None


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
    with start("--memory-budget", "8MiB") as server:
        yield server


def test_a_request_that_can_never_fit_the_budget_is_too_large(small_budget: Server) -> None:
    answer = small_budget.shared_client().post("/gathernd", content=base64_body(9 * MIB))
    assert answer.json()["code"] == "payload_too_large"
    assert (answer.json()["limit"], answer.json()["maximum"]) == ("memory_budget", 8 * MIB)


def test_an_output_that_can_never_fit_the_budget_is_too_large(small_budget: Server) -> None:
    row: Any = packed(tensor("int8", [1, 16384], [0] * 16384))
    answer = small_budget.shared_client().post(
        "/gathernd", json={"data": row, "indices": packed(int64([1000, 1], [0] * 1000))}
    )
    assert answer.json()["code"] == "payload_too_large"


def test_a_stalled_upload_takes_the_budget_of_large_requests_and_not_of_small_ones(small_budget: Server) -> None:
    client = small_budget.shared_client()
    body = base64_body(4 * MIB)  # and the 3 MiB of its items
    with Wire(small_budget) as stalled:
        stalled.send(request(body)[: 4 * MIB])
        end = monotonic() + 10
        answer = client.post("/gathernd", content=body)
        while answer.status_code == 200 and monotonic() < end:  # until what was sent has been read
            answer = client.post("/gathernd", content=body)
        assert answer.json()["code"] == "overloaded"
        for _ in range(20):
            assert client.post("/gathernd", content=TINY).status_code == 200
    end = monotonic() + 10
    while client.post("/gathernd", content=body).status_code != 200:  # the budget comes back with the connection's end
        assert monotonic() < end
        sleep(0.05)


def test_the_budget_is_whole_again_after_any_mixture_of_requests(small_budget: Server) -> None:
    client = small_budget.shared_client()
    body = base64_body(4 * MIB)  # and the 3 MiB of its items: nearly all there is
    for content in (base64_body(2 * MIB), body[:-1], base64_body(9 * MIB), TINY, b"{", body.replace(b"int8", b"int9")):
        client.post("/gathernd", content=content)
    assert client.post("/gathernd", content=body).status_code == 200
