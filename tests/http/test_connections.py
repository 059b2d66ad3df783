"""The limit on open connections: the longest idle makes room, and where none is idle the new one is refused."""

from __future__ import annotations

import os
import resource
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from time import sleep

import httpx
import pytest
from pydantic import ValidationError

from app.settings import Settings
from tests.http.conftest import Start
from tests.http.held import metric, until
from tests.http.raw import TINY, Answer, Wire, ask, request
from tests.http.server import GATHERND, Server
from tests.http.test_tls import make_pair

MOST = 20
RAW = {"content-type": "application/octet-stream"}
CLOSED = "gathernd_connections_closed_idle_total"
REFUSED = "gathernd_connections_refused_total"
LIMIT_REFUSALS = 'gathernd_limit_refusals_total{limit="connections"}'
PART = request(TINY)[:-1]
"""All of a request but its last byte."""


@pytest.fixture(scope="module")
def few(start: Start) -> Iterator[Server]:
    """A server of few connections, whose senders may take their time."""
    with start("--max-connections", str(MOST), "--body-timeout", "60", "--header-timeout", "60") as server:
        yield server


@pytest.fixture
def small(few: Server) -> Server:
    """That server once the connections of the test before have gone."""
    wait_for_connections(few, 0)
    return few


class Counted:
    """By how much counts have grown."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = {name: metric(server, name) for name in (CLOSED, REFUSED, LIMIT_REFUSALS)}

    def __getitem__(self, name: str) -> float:
        return metric(self._server, name) - self._before[name]


@contextmanager
def wires(server: Server, count: int, first: bytes = b"") -> Iterator[list[Wire]]:
    """So many connections, on each of which `first` has been sent, and answered if it is a whole request."""
    with ExitStack() as stack:
        opened = []
        for _ in range(count):
            wire = stack.enter_context(Wire(server))
            wire.send(first)
            if first == request(TINY):
                assert wire.read().status == 200
            opened.append(wire)
        yield opened


def wait_until_idle() -> None:
    """Until what is open now is idle by the service's own clock."""
    sleep(1.1)


def wait_until_taken(server: Server) -> None:
    """Until the server has taken, or closed, each connection that came before this one: they wait in order."""
    with suppress(httpx.TransportError), server.client() as client:
        client.get("/livez")


def wait_for_connections(server: Server, count: int) -> None:
    """Until the server has so many connections besides the one that asks."""
    until(lambda: metric(server, "gathernd_connections") == count + 1)


def is_refusal(answer: Answer) -> bool:
    found = answer.json()
    assert (answer.status, found["code"], found["limit"], found["maximum"]) == (503, "overloaded", "connections", MOST)
    assert answer.headers["connection"] == "close"
    assert int(answer.headers["retry-after"]) >= 1
    return True


def test_the_longest_idle_connection_makes_room_for_a_new_one(small: Server) -> None:
    counted = Counted(small)
    with wires(small, MOST // 2, request(TINY)) as old, wires(small, MOST // 2 - 1) as silent:
        wait_for_connections(small, MOST - 1)
        old[0].send(request(TINY))
        assert old[0].read().status == 200
        wait_until_idle()
        with wires(small, 3, request(TINY)):
            assert [wire.closed() for wire in old[1:4]] == [True] * 3
            for wire in (old[0], *old[4:], *silent):
                wire.send(request(TINY))
                assert wire.read().status == 200
        assert counted[CLOSED] == 3
        assert counted[REFUSED] == 0
        assert metric(small, "gathernd_connections_limit") == MOST


@pytest.mark.parametrize("part", [request(TINY)[:30], PART], ids=["in the header", "in the body"])
def test_where_none_is_idle_a_new_connection_is_told_so(small: Server, part: bytes) -> None:
    counted = Counted(small)
    small.close_shared_client()  # an idle connection would make room
    with wires(small, MOST, part) as busy:
        wait_for_connections(small, MOST)
        small.close_shared_client()
        wait_until_idle()
        large = request(b" " * (1 << 20))
        for data in (request(TINY), large, request(b"", "X-Request-ID: mine", line="GET /tensors HTTP/1.1")):
            with Wire(small) as wire:
                wire.send(data)
                assert is_refusal(wire.read())
                assert wire.closed()
        assert ask(small, request(TINY, "X-Request-ID: mine")).headers["x-request-id"] == "mine"
        assert counted[REFUSED] == 4
        assert counted[LIMIT_REFUSALS] == 4
        for path in ("/livez", "/readyz", "/metrics", "/v2/health/ready?verbose"):
            with Wire(small) as wire:
                wire.send(request(b"", line=f"GET {path} HTTP/1.1", length=False))
                answer = wire.read()
                assert (answer.status, answer.headers["connection"]) == (200, "close")
                assert wire.closed()
        with Wire(small) as late:  # sends nothing: told by itself
            assert is_refusal(late.read())
        for wire in busy:
            wire.send(request(TINY)[len(part) :])
            assert wire.read().status == 200
    assert ask(small, request(TINY)).status == 200


def limited_files(server_flags: list[str], files: int) -> list[str]:
    """The command of a server that may open so many files."""
    program = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (64, int(sys.argv[1])));"
    return [sys.executable, "-c", program + "os.execv(sys.argv[2], sys.argv[2:])", str(files), GATHERND, *server_flags]


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("what", ["connections", pytest.param("handshakes", marks=pytest.mark.slow)])
def test_the_service_never_runs_out_of_files(start: Start, tmp_path: Path, what: str, workers: str) -> None:
    pair = make_pair(tmp_path, "server") if what == "handshakes" else None
    flags = (*(() if pair is None else pair.flags()), "--workers", workers)
    tls = None if pair is None else pair.trusting()
    with start(*flags, command=limited_files(["serve"], 400), tls=tls) as server, ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        wait_until_taken(server)
        wait_until_idle()
        with server.client() as client:
            for _ in range(5):
                put = client.put("/tensors/x?dtype=int8&shape=4", content=b"1234", headers=RAW)
                assert put.status_code in (200, 201)
                assert client.post("/gathernd", content=TINY).status_code == 200
            assert max(map(open_files, [server.process.pid, *server.workers()])) < 400 - 32
            assert client.get("/metrics").status_code == 200
        assert "Too many open files" not in server.log_text()


def test_the_default_leaves_room_for_other_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for hard, expected in ((1024, 672), (400, 204), (524288, 10_000), (resource.RLIM_INFINITY, 10_000), (64, 1)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, hard=hard: (64, hard))
        assert Settings().max_connections == expected
    with pytest.raises(ValidationError, match="open files"):
        Settings(max_connections=500)
