"""Several workers on one port, as their clients and their operator see them: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from time import sleep

import pytest

from app.security import api_keys
from tests.http.conftest import Start
from tests.http.held import refuses, until
from tests.http.server import GATHERND, TWO_WORKERS, Server
from tests.workers.load import CONTENT, ask_once, connected, load, request

READY = request("GET", "/readyz", b"")


@pytest.fixture(scope="module")
def pair(start: Start) -> Iterator[Server]:
    """A service of two workers, for tests that leave it in order."""
    with start(*TWO_WORKERS) as server:
        yield server


def identities(server: Server, connections: int = 16) -> Counter[str]:
    """How many of so many connections at once each worker takes."""
    with connected(server.port, connections) as opened:
        return Counter(connection.ask(READY).worker for connection in opened)


def metric(server: Server, name: str) -> float:
    text = ask_once(server.port, request("GET", "/metrics", b"")).body.decode()
    return float(next((line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")), "0"))


def wait_for_two_workers(server: Server) -> None:
    """Wait until two workers take connections again."""
    until(lambda: len(server.workers()) == 2 and len(identities(server)) == 2, 60, "two workers")


def test_a_killed_worker_is_replaced_and_only_what_it_had_in_hand_is_lost(pair: Server, soak_scale: int) -> None:
    for _ in range(1 if soak_scale == 1 else 20):
        kill_under_load(pair, clients=8)


def kill_under_load(pair: Server, clients: int) -> None:
    wait_for_two_workers(pair)
    deaths = metric(pair, "gathernd_workers_died_total")
    with load(pair.port, clients, 0.02, careful=True) as running:
        running.wait(1.0)
        before, workers = set(pair.workers()), set(running.right)
        os.kill(min(before), signal.SIGKILL)
        until(lambda: set(pair.workers()) - before, 60, "the death is noticed")
        until(lambda: set(running.right) - workers, 60, "the new worker answers")
        # Clients keep their connections: only if they are sent over does the new worker get its share.
        until(lambda: min(share(running.recent(0.5))) > 0.25, 60, "the load is spread again")
        present = set(running.recent(0.5))
    assert len(workers) == len(present) == 2
    (victim,) = workers - present
    # Every client had one request in hand at most; no other was lost, then or later, nor one of the other worker.
    assert len(running.failed) <= clients, running.failed
    assert {failure.worker for failure in running.failed} <= {victim, "none"}, (victim, running.failed)
    assert metric(pair, "gathernd_workers_died_total") == deaths + 1


def share(answers: Counter[str]) -> list[float]:
    counts = list(answers.values())
    return [count / sum(counts) for count in counts] if len(counts) > 1 else [0.0]


def test_a_rolling_restart_under_load_loses_no_request(pair: Server, soak_scale: int) -> None:
    wait_for_two_workers(pair)
    restarts, pause = (1, 0.02) if soak_scale == 1 else (20, 0.0)
    with load(pair.port, pause=pause) as running:
        for number in range(restarts):
            before = set(pair.workers())
            ended = pair.log_text().count("the restart has ended")
            pair.process.send_signal(signal.SIGHUP)
            while pair.log_text().count("the restart has ended") == ended:
                assert ask_once(pair.port, READY).status == 200, number
                sleep(0.02)
                assert "given up" not in pair.log_text()
            assert len(pair.workers()) == 2
            assert not before & set(pair.workers()), number
        running.wait(0.5)
    assert running.failed == []
    assert len(running.right) >= 2 * restarts
    wait_for_two_workers(pair)


def test_a_stop_lets_clients_go_and_answers_what_is_under_way(start: Start) -> None:
    with (
        start(*TWO_WORKERS, "--drain-delay", "600") as server,
        connected(server.port, 6) as busy,
        connected(server.port, 18) as regular,
    ):
        for connection in busy:
            connection.socket.sendall(request()[:-20])
        workers = {connection.ask(READY).worker for connection in regular}
        assert len(workers) == 2
        server.process.send_signal(signal.SIGTERM)
        for connection in regular:
            refused = connection.ask(READY)
            while refused.status == 200:  # its worker has not heard of the stop
                refused = connection.ask(READY)
            assert (refused.status, json.loads(refused.body)["code"]) == (503, "not_ready")
            assert refused.last
            assert connection.closed()
        # New connections are still taken, by every worker, and gathers still answered.
        fresh = [ask_once(server.port, request()) for _ in range(12)]
        assert {answer.status for answer in fresh} == {200}
        assert {answer.last for answer in fresh} == {True}
        server.process.send_signal(signal.SIGTERM)  # ends the delay
        until(lambda: refuses(server.port), 60, "no new connection is taken")
        assert server.process.poll() is None
        for connection in busy:
            answer = connection.ask(request()[-20:])
            assert answer.status == 200
            assert answer.last
        assert server.process.wait(60) == 0
        assert "killed" not in server.log_text()


@pytest.mark.slow
def test_a_stop_while_it_starts_is_quick_and_no_failure(start: Start) -> None:
    with start(*TWO_WORKERS, ready=False) as server:
        assert server.stop(within=60) == 0
        until(lambda: refuses(server.port), 60, "the port is given up")


def test_workers_end_with_their_parent_and_finish_what_they_have(start: Start) -> None:
    with start(*TWO_WORKERS) as server, connected(server.port, 4) as busy:
        workers = server.workers()
        for connection in busy:
            connection.socket.sendall(request()[:-20])
        until(lambda: metric(server, "gathernd_requests_in_flight") >= 4, 60, "the workers have the requests")
        server.process.kill()
        server.process.wait(60)
        until(lambda: refuses(server.port), 60, "the port is given up")
        for connection in busy:
            assert connection.ask(request()[-20:]).status == 200
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 60, "the workers end")
        server.process.returncode = 0  # as this test has killed it, it is not asked how it ended


def test_workers_that_cannot_start_end_the_parent_with_a_reason(tmp_path: Path) -> None:
    """Python reads `sitecustomize` before anything else; this one lets the parent live, which has no -P."""
    (tmp_path / "sitecustomize.py").write_text("import os, sys\nif '-P' in sys.orig_argv: os._exit(7)\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [GATHERND, "serve", "--port", "0", *TWO_WORKERS, "--store-dir", str(tmp_path / "store")]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "ended with exit code 7" in done.stderr
    assert "the service cannot start" in done.stderr


@pytest.mark.slow
def test_a_port_that_is_taken_ends_the_parent_with_a_reason(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [GATHERND, "serve", "--port", port, *TWO_WORKERS, "--store-dir", str(tmp_path / "store")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_that_starts_while_the_keys_file_is_broken_knows_the_last_good_keys(
    start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "keys"
    kept, removed = (f"Bearer {api_keys.add(file, label, ['gather'])}" for label in ("kept", "removed"))
    with start(*TWO_WORKERS, "--api-keys-file", str(file)) as server:
        api_keys.remove(file, "removed")
        until(lambda: "keys file: used for workers started from now on" in server.log_text(), 60, "handed on")
        until(lambda: server.log_text().count("keys file: 1 keys in force") == 2, 60, "both workers have read it")
        broken = tmp_path / "broken"
        broken.write_text("broken\n")
        broken.replace(file)  # in one step: while a file is written anew, it is empty, and has no key
        until(lambda: "keys file: line 1" in server.log_text(), 60, "it is read")
        os.kill(server.workers()[0], signal.SIGKILL)
        until(lambda: metric_lines(server, kept).get("gathernd_workers_started_total") == 3, 60, "a new worker")
        until(lambda: metric_lines(server, kept).get("gathernd_processes") == 2, 60, "it answers")
        for _ in range(20):
            assert ask_once(server.port, request(authorization=kept)).status == 200
            assert ask_once(server.port, request(authorization=removed)).status == 401


def metric_lines(server: Server, key: str) -> dict[str, float]:
    text = ask_once(server.port, request("GET", "/metrics", b"", authorization=key)).body.decode()
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {name: float(number) for name, number in lines}


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_one_process_and_several_leave_idle_connections_alike(workers: str, start: Start) -> None:
    """Without a drain delay too, a client that is about to ask gets its answer."""
    with start("--workers", workers) as server, connected(server.port, 2) as (active, idle):
        assert idle.ask(request()).status == 200
        sleep(1.2)
        assert active.ask(request()).status == 200
        server.process.send_signal(signal.SIGTERM)
        assert idle.closed()
        answer = active.ask(request(body=CONTENT))
        assert (answer.status, answer.last) == (200, True)
        assert server.process.wait(60) == 0
