"""Workers that hang, and workers that cannot be replaced: real processes, real signals, real limits.

The parent runs with shorter times than in service, set by a small program; what it does is the same.
"""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.http.conftest import Start
from tests.http.held import refuses, until
from tests.http.server import TWO_WORKERS, Server
from tests.server.test_listening import needs_ipv6
from tests.workers.load import ask_once, connected, request
from tests.workers.test_workers import READY

_QUICK = (
    "import app.server.supervisor as w; w._KILL_AFTER_S = 3.0; w._BACKOFF_S = (0.1, 0.3); w.GIVE_UP_AFTER = {give_up}; "
    "w.START_S = {start_s}; from gathernd_cli import main; main()"
)


def quick(give_up: int = 12, start_s: float = 600.0) -> tuple[str, ...]:
    """`gathernd serve` with a parent with shorter timeouts."""
    return sys.executable, "-c", _QUICK.format(give_up=give_up, start_s=start_s), "serve"


@contextmanager
def no_more_files(server: Server) -> Iterator[None]:
    """The parent can open nothing, and so start no worker."""
    pid = server.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        if server.process.poll() is None:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


def kill(numbers: list[int]) -> None:
    for pid in numbers:
        os.kill(pid, signal.SIGKILL)


def test_a_worker_that_hangs_in_a_rolling_restart_is_killed_and_the_restart_ends(start: Start) -> None:
    with start(*TWO_WORKERS, "--drain-timeout", "0.5", command=quick()) as server:
        before = server.workers()
        for pid in before:
            os.kill(pid, signal.SIGSTOP)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: "the restart has ended" in server.log_text(), 60, "the restart ends")
        assert len(server.workers()) == 2
        assert not set(before) & set(server.workers())
        assert server.log_text().count("is not responding; killing it") == 2
        assert ask_once(server.port, request()).status == 200
        assert server.stop() == 0, "how a worker ended that had been replaced is no failure of the stop"


@pytest.mark.slow
def test_a_worker_that_hangs_while_the_service_starts_ends_the_start(start: Start) -> None:
    with start(*TWO_WORKERS, ready=False, command=quick(start_s=20.0)) as server:
        hung = server.workers()[-1]
        os.kill(hung, signal.SIGSTOP)
        assert server.process.wait(120) == 3
        assert f"worker {hung} is not responding; killing it" in server.log_text()
        assert "the service cannot start" in server.log_text()
        server.process.returncode = 0  # the end that is expected of other servers


def test_a_parent_that_cannot_replace_its_workers_refuses_connections_until_it_can(start: Start) -> None:
    with start(*TWO_WORKERS, command=quick(give_up=10_000)) as server:
        with no_more_files(server):
            kill(server.workers()[:1])
            until(lambda: "a worker is missing" in server.log_text(), 60, "it says so")
            assert ask_once(server.port, READY).status == 200, "the other one carries on"
            kill(server.workers())
            until(lambda: "no worker is left" in server.log_text(), 60, "it says that none is left")
            assert refuses(server.port)
            tries = server.log_text().count("no worker is left")
            until(lambda: server.log_text().count("no worker is left") > tries + 1, 60, "it tries again")
            assert server.process.poll() is None
        until(lambda: not refuses(server.port), 60, "the port is open again")
        until(lambda: len(server.workers()) == 2, 60, "both workers are back")
        until(lambda: server.log_text().count("is accepting connections") == 4, 60, "both take connections")
        with connected(server.port) as (connection,):
            assert connection.ask(request()).status == 200
            assert connection.ask(request()).status == 200, "the connection stays open"
        assert server.stop() == 0


@pytest.mark.slow
def test_a_rolling_restart_for_which_no_worker_can_be_started_leaves_the_old_ones(start: Start) -> None:
    with start(*TWO_WORKERS, command=quick()) as server:
        before = server.workers()
        with no_more_files(server):
            server.process.send_signal(signal.SIGHUP)
            until(lambda: "the restart was abandoned" in server.log_text(), 60, "it says so")
        assert server.workers() == before
        assert "a worker is missing" not in server.log_text()
        assert "the restart has ended" not in server.log_text()
        assert ask_once(server.port, request()).status == 200
        assert server.stop() == 0


@pytest.mark.slow
def test_a_parent_that_can_never_replace_its_workers_ends_with_a_failure(start: Start) -> None:
    with start(*TWO_WORKERS, command=quick(give_up=4)) as server, no_more_files(server):
        kill(server.workers())
        assert server.process.wait(60) == 3
        assert "giving up" in server.log_text()
        assert refuses(server.port)
        server.process.returncode = 0  # the end that is expected of other servers


@pytest.mark.slow
def test_a_stop_while_no_worker_is_left_is_a_failure(start: Start) -> None:
    with start(*TWO_WORKERS, command=quick(give_up=10_000)) as server, no_more_files(server):
        kill(server.workers())
        until(lambda: "no worker is left" in server.log_text(), 60, "it says that none is left")
        assert server.stop() == 1
        server.process.returncode = 0  # the end that is expected of other servers


@needs_ipv6
@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_one_process_and_several_listen_on_the_same_addresses(workers: str, start: Start) -> None:
    """:: stands for all addresses of IPv4 too."""
    with start("--workers", workers, "--host", "::") as server:
        for address in ("127.0.0.1", "::1"):
            with socket.create_connection((address, server.port), 60) as client:
                client.sendall(READY)
                assert client.recv(4096).startswith(b"HTTP/1.1 200 "), address
