"""Stopping one process: readiness first, nothing that was accepted is lost, exit code 0."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from time import monotonic

import httpx
import pytest

from tests.http.conftest import Start
from tests.http.held import faulty, held, metric, refuses, until, wait_for_queue
from tests.http.raw import TINY, Answer, Wire, ask, request
from tests.http.server import Server


def until_not_ready(server: Server) -> Answer:
    """The first answer of /readyz, on a connection of its own, that is a refusal."""
    answers: list[Answer] = []

    def is_not_ready() -> bool:
        answers.append(ask(server, request(b"", line="GET /readyz HTTP/1.1", length=False)))
        return answers[-1].status == 503

    until(is_not_ready)
    return answers[-1]


def until_under_way(server: Server) -> None:
    """Until a request is under way beside the one that asks."""
    until(lambda: metric(server, "gathernd_requests_in_flight") == 2)


def test_readiness_flips_first_and_requests_are_accepted_during_the_delay(start: Start) -> None:
    """A second signal ends the delay."""
    with start("--drain-delay", "600") as server:
        with Wire(server) as old:
            old.send(request(TINY))
            assert old.read().status == 200
            server.process.send_signal(signal.SIGTERM)
            answer = until_not_ready(server)
            assert answer.json()["code"] == "not_ready"
            assert "stopping" in answer.json()["detail"]
            old.send(request(TINY))  # a connection from before
            assert old.read().status == 200
        for _ in range(5):
            with Wire(server) as wire:  # and new ones
                wire.send(request(TINY))
                assert wire.read().status == 200
                wire.send(b"")
            with Wire(server) as wire:
                wire.send(request(b"", line="GET /livez HTTP/1.1", length=False))
                assert wire.read().status == 200
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0


def test_the_delay_ends_by_itself_and_not_before(start: Start) -> None:
    with start("--drain-delay", "1") as server:
        begun = monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert monotonic() - begun >= 1


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_what_runs_is_answered_and_the_exit_code_is_zero(start: Start, number: int) -> None:
    with start("--loop-max-us", "0", "--threads", "2", "--queue-timeout", "100", command=faulty("held")) as server:
        answers: list[httpx.Response] = []

        def ask() -> None:
            with server.client() as client:
                answers.append(client.post("/gathernd", content=TINY))

        threads = [threading.Thread(target=ask) for _ in range(4)]  # two run, two wait
        with held(server):
            for thread in threads:
                thread.start()
            wait_for_queue(server, 4)
            server.process.send_signal(number)
            until(lambda: refuses(server.port))
        for thread in threads:
            thread.join()
        assert [answer.status_code for answer in answers] == [200] * 4
        assert server.process.wait(60) == 0


def test_idle_connections_are_closed_and_do_not_hold_the_process(start: Start) -> None:
    with start("--drain-timeout", "200") as server:
        wires = [Wire(server) for _ in range(5)]
        for wire in wires[1:]:  # the first one has never sent anything
            wire.send(request(TINY))
            assert wire.read().status == 200
        server.process.send_signal(signal.SIGTERM)
        for wire in wires:
            assert wire.closed()
            wire.socket.close()
        assert server.process.wait(60) == 0


@pytest.mark.slow
def test_a_request_that_is_still_being_sent_is_finished(start: Start) -> None:
    with start() as server, Wire(server) as wire:
        data = request(TINY)
        wire.send(data[:-10])
        until_under_way(server)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(server.port))
        wire.send(data[-10:])
        answer = wire.read()
        assert answer.status == 200
        assert answer.headers["connection"] == "close"
        assert wire.closed()
        assert server.process.wait(60) == 0


@pytest.mark.slow
def test_what_outlasts_the_drain_timeout_is_cut_off(start: Start) -> None:
    with start("--drain-timeout", "1") as server, Wire(server) as wire:
        wire.send(request(TINY)[:-1])  # and never the rest
        until_under_way(server)
        begun = monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert monotonic() - begun > 0.9  # and less than the 30 s of the default
        answer = wire.read()
        assert (answer.status, answer.json()["code"]) == (503, "not_ready")


def test_a_stop_while_compiling_does_not_wait_for_the_compiler(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with start("--uds", str(path), command=faulty("compiling"), ready=False) as server:
        with Wire(server) as wire:
            wire.send(request(TINY))
            assert wire.read().status == 503
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert "stopped before the kernels were ready" in server.log_text()
        assert not path.exists()


def test_a_helper_of_the_compiler_ends_with_its_parent() -> None:
    program = (
        "import time; from threading import Thread; from app.warmup import _end_with_parent;"
        "Thread(target=_end_with_parent, daemon=True).start(); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as helper:
        with pytest.raises(subprocess.TimeoutExpired):
            helper.wait(1)
        assert helper.stdin is not None
        helper.stdin.close()
        assert helper.wait(60) == 1
