"""GATHERND_UDS: HTTP on a Unix socket, alone and beside TCP, with several workers, TLS and rules of access."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from gathernd import Client
from gathernd.errors import ConnectError
from tests.client.conftest import Awaited
from tests.http import server as servers
from tests.http.conftest import Start
from tests.http.held import until
from tests.http.server import GATHERND, TWO_WORKERS

DATA = np.arange(6, dtype=np.float32).reshape(3, 2)
INDICES = np.array([[1], [-3]])


@contextmanager
def on_socket(path: Path, **options: Any) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(path))
    with httpx.Client(transport=transport, base_url="http://localhost", timeout=60, **options) as client:
        yield client


@contextmanager
def socket_alone(warmed: Path, folder: Path, *flags: str) -> Iterator[tuple[Any, Path, Path]]:
    """A service with nothing but a Unix socket: its process, the socket's path and its log."""
    path, log = folder / "a.sock", folder / "log"
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GATHERND_")}
    variables |= {"GATHERND_STORE_DIR": str(folder / "store"), "GATHERND_CACHE_DIR": str(warmed)}
    with log.open("wb") as file:
        process = servers.start([GATHERND, "serve", "--uds", str(path), *flags], folder, variables, {}, file)
    try:
        until(lambda: process.poll() is not None or f"ready on unix:{path}" in log.read_text())
        assert process.poll() is None, log.read_text()
        yield process, path, log
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait(60)


def listens_on_tcp(pid: int) -> bool:
    """Whether a process has a TCP socket that listens."""
    own = {str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir()}
    tables = [Path(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return any(row[3] == "0A" and f"socket:[{row[9]}]" in own for row in rows)


def test_a_service_on_a_unix_socket_alone(warmed: Path, tmp_path: Path) -> None:
    with socket_alone(warmed, tmp_path, "--access-log") as (process, path, log):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert not listens_on_tcp(process.pid)
        for kind in (Client, Awaited):
            with kind(f"unix:{path}") as client:
                client.put("a", DATA)
                assert np.array_equal(client.gathernd("a", INDICES), DATA[[1, 0]])
        with on_socket(path) as client:
            # The rules of loopback: any page's name that a browser would send is foreign here too.
            assert client.get("/readyz", headers={"host": "pages.example"}).status_code == 403
        done = servers.run_program([GATHERND, "status", "--url", f"unix:{path}"])
        assert done.returncode == 0, done
        assert "yes" in done.stdout
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()
        assert not path.exists()
        assert re.search(r"method=POST route=/gathernd .*status=200", log.read_text())
    with pytest.raises(ConnectError):
        Client(f"unix:{path}", retries=0).gathernd(DATA, INDICES)


def test_what_a_killed_service_has_left_is_replaced(warmed: Path, tmp_path: Path) -> None:
    with socket_alone(warmed, tmp_path) as (process, path, _):
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert path.exists()
    with socket_alone(warmed, tmp_path, "--uds-mode", "0666") as (_, path, _), on_socket(path) as client:
        assert stat.S_IMODE(path.stat().st_mode) == 0o666
        # Everybody on this machine may connect: without keys nobody changes a tensor.
        refused = client.put("/tensors/a", params={"dtype": "uint8", "shape": "1"}, content=b"a")
        assert refused.json()["code"] == "forbidden"
        indices = {"dtype": "int64", "shape": [1, 1], "values": [2]}
        gathered = client.post(
            "/gathernd", json={"data": {"dtype": "int8", "shape": [3], "values": [5, 6, 7]}, "indices": indices}
        )
        assert gathered.json()["output"]["values"] == [7], gathered.text


@pytest.mark.slow
def test_workers_share_a_unix_socket(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with start("--uds", str(path), *TWO_WORKERS) as server:
        held = []
        for _ in range(8):
            one = socket.socket(socket.AF_UNIX)
            one.connect(str(path))
            one.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
            held.append(one)
        for worker in server.workers():
            os.kill(worker, signal.SIGKILL)
        for one in held:
            one.close()
        with on_socket(path) as client:

            def answers() -> bool:
                with suppress(httpx.HTTPError):
                    return client.get("/readyz").status_code == 200
                return False

            until(answers)
    assert not path.exists()
