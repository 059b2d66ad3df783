"""GATHERND_GRPC_UDS: gRPC on a Unix socket."""

from __future__ import annotations

import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from tests.grpc_api.conftest import becomes, put_row, used
from tests.grpc_api.http2 import DATA, END_HEADERS, END_STREAM, HEADERS, LARGEST_WINDOW, Http2, frame, framed, header
from tests.grpc_api.messages import Channel, example, output, request
from tests.http.conftest import Start
from tests.http.server import GATHERND, Server


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
        put_row(server)
        yield server
        assert "Traceback" not in server.log_text()


def ask_for_much(connection: Http2, calls: int) -> None:
    """So many calls with answers of nearly 4 MiB."""
    message = framed(request({"indices": ("INT64", np.zeros((63, 1), np.int64))}, "row").SerializeToString())
    for number in range(calls):
        connection.send(frame(HEADERS, END_HEADERS, 1 + 2 * number, header()))
        connection.send(frame(DATA, END_STREAM, 1 + 2 * number, message))


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
            assert (
                "resetting a gRPC connection on the Unix socket: its caller does not read responses"
                in server.log_text()
            )
            assert server.log_text().count("does not read responses") == 1
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
