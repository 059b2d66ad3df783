"""GATHERND_GRPC_UDS: gRPC on a Unix socket."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from tests.grpc_api.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, LARGEST_WINDOW, Http2, frame, framed, header
from tests.grpc_api.messages import Channel, example, output, request
from tests.http.conftest import Start
from tests.http.server import GATHERND, Server, run_program


def test_calls_over_a_unix_socket(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    with start("--grpc-uds", str(path), "--uds-mode", "0660") as server:
        end = monotonic() + 60
        while f"gRPC on unix:{path}" not in server.log_text():
            assert monotonic() < end, server.log_text()
            sleep(0.02)
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with Channel(f"unix:{path}") as channel:
            assert output(channel.call("ModelInfer", example()), np.float32).tolist() == [[2, 3], [0, 1]]
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0, server.log_text()
        assert not path.exists()
        assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_second_service_on_the_same_path_ends(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    with start("--grpc-uds", str(path)):
        command = [GATHERND, "serve", "--port", "0", "--grpc-uds", str(path), "--store-dir", str(tmp_path / "store")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, done
        assert "another program listens there; GATHERND_GRPC_UDS sets another path" in done.stderr
        with Channel(f"unix:{path}") as channel:
            assert output(channel.call("ModelInfer", example()), np.float32).tolist() == [[2, 3], [0, 1]]


def test_a_socket_that_cannot_have_its_owner_ends_the_start_with_a_reason(tmp_path: Path) -> None:
    """gRPC's threads run already by then."""
    folders = ["--store-dir", str(tmp_path / "store"), "--cache-dir", str(tmp_path / "cache")]
    sockets = ["--uds", str(tmp_path / "http.sock"), "--grpc-uds", str(tmp_path / "grpc.sock")]
    # Root may give any file away: here nobody may, but that of HTTP, which comes first.
    program = (
        "import errno, os\n"
        "def chown(path, *_):\n"
        "    if made: raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))\n"
        "    made.append(path)\n"
        "made, os.chown = [], chown\n"
        "from gathernd_cli import main\n"
        "main()"
    )
    command = [sys.executable, "-c", program, "serve", "--kernel", "numpy", "--uds-owner", "0", *folders, *sockets]
    done = run_program(command)
    assert done.returncode == 3, done
    assert "gRPC cannot be served: cannot listen on" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*.sock"))


@pytest.mark.slow
def test_one_worker_serves_it(tmp_path: Path) -> None:
    command = [GATHERND, "serve", "--port", "0", "--workers", "2", "--grpc-uds", str(tmp_path / "grpc.sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done
    assert "GATHERND_WORKERS=1" in done.stderr


@contextmanager
def with_room_for_little(start: Start, path: Path, *flags: str) -> Iterator[Server]:
    """A service on a Unix socket, a row of which is resident: answers of 4 MiB are made of it."""
    more = ("--memory-budget", "64MiB", "--grpc-max-message-bytes", "4MiB", "--max-output-bytes", "4MiB", *flags)
    with start("--grpc-uds", str(path), *more) as server:
        with server.client() as client:
            headers = {"content-type": "application/octet-stream"}
            put = client.put("/tensors/row?dtype=int8&shape=1,65536", content=bytes(1 << 16), headers=headers)
            assert put.status_code == 201
        yield server
        assert "Traceback" not in server.log_text()


def used(server: Server) -> float:
    with server.client() as client:
        text = client.get("/metrics").text
    return float(text.split("\ngathernd_memory_used_bytes ")[1].split()[0])


def ask_for_much(connection: Http2, calls: int) -> None:
    """So many calls with answers of nearly 4 MiB."""
    message = framed(request({"indices": ("INT64", np.zeros((63, 1), np.int64))}, "row").SerializeToString())
    for number in range(calls):
        connection.send(frame(HEADERS, END_HEADERS, 1 + 2 * number, header()))
        connection.send(frame(DATA, END_STREAM, 1 + 2 * number, message))


def becomes(condition: Callable[[], bool], seconds: float = 20) -> bool:
    end = monotonic() + seconds
    while not (met := condition()) and monotonic() < end:
        sleep(0.05)
    return met


@pytest.mark.slow
def test_a_caller_who_reads_nothing_is_cut_off_and_one_who_reads_slowly_is_not(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    flags = ("--answer-timeout", "3", "--min-answer-rate", "100000")
    with with_room_for_little(start, path, *flags) as server:
        with Http2(path, LARGEST_WINDOW, reading=False) as silent, Http2(path, LARGEST_WINDOW, reading=False) as slow:
            ask_for_much(silent, 3)
            ask_for_much(slow, 1)
            assert becomes(lambda: used(server) > 12 << 20)
            slow.socket.settimeout(5)
            got, begun = 0, monotonic()
            while got < 4_000_000:
                part = slow.socket.recv(40_000)
                assert part
                got += len(part)
                sleep(0.08)
            assert monotonic() - begun > 6
            with suppress(ConnectionError):
                while silent.socket.recv(1 << 20):
                    pass
            assert "on the Unix socket is reset: its caller reads no answers" in server.log_text()
            assert server.log_text().count("reads no answers") == 1
            assert becomes(lambda: used(server) == 0)
        with Channel(f"unix:{path}") as channel:
            assert output(channel.call("ModelInfer", example()), np.float32).tolist() == [[2, 3], [0, 1]]


def test_a_caller_who_opens_no_window_is_cut_off_when_its_connection_is_old(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "grpc.sock"
    flags = ("--grpc-max-connection-age", "2", "--drain-timeout", "1")
    with with_room_for_little(start, path, *flags) as server, Http2(path, window=0) as connection:
        ask_for_much(connection, 4)
        assert becomes(lambda: used(server) > 8 << 20, 1.5)
        assert connection.wait_closed(20)
        assert becomes(lambda: used(server) == 0)
        with Channel(f"unix:{path}") as channel:
            assert output(channel.call("ModelInfer", example()), np.float32).tolist() == [[2, 3], [0, 1]]
