"""What a worker is handed, and starts that fail: one clear line, a code that is not 0, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError

from app.server.exit_codes import STARTUP_FAILURE
from app.server.worker_process import WorkerStart
from app.server_from_settings import WORKER_PROGRAM, worker_settings
from app.settings import Settings
from app.telemetry.shared_counters import CounterGroup
from tests.free_port import free_port
from tests.http.server import GATHERND, run_program


@contextmanager
def prepared(fault: str, folder: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Flags that cannot be served with, and what the refusal must tell."""
    missing, port = str(folder / "missing"), str(free_port())
    if fault == "port":
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            yield ["--port", port], ["cannot listen on 127.0.0.1", port, "GATHERND_PORT"]
        return
    yield {
        "host": (["--host", "no-such-host.invalid"], ["no-such-host.invalid", "GATHERND_HOST"]),
        "address": (["--host", "192.0.2.1"], ["cannot listen on 192.0.2.1", "GATHERND_HOST"]),
        "keys": (["--api-keys-file", missing], ["GATHERND_API_KEYS_FILE", missing, "No such file"]),
        "setting": (["--threads", "0"], ["--threads", "GATHERND_THREADS"]),
        "gRPC's port": (["--port", port, "--grpc-port", port], ["--grpc-port (GATHERND_GRPC_PORT)", port, "HTTP"]),
        "gRPC's path": (["--uds", missing, "--grpc-uds", missing], ["--grpc-uds (GATHERND_GRPC_UDS)", missing, "HTTP"]),
        "gpu": (["--device", "gpu", "--workers", "2"], ["GATHERND_DEVICE", "several workers"]),
    }[fault]


@pytest.mark.parametrize(
    ("fault", "workers", "code"),
    [
        ("port", "2", 1),
        pytest.param("host", "1", 1, marks=pytest.mark.slow),
        pytest.param("address", "2", 1, marks=pytest.mark.slow),
        pytest.param("keys", "2", 2, marks=pytest.mark.slow),
        pytest.param("setting", "2", 2, marks=pytest.mark.slow),
        ("gRPC's port", "1", 2),
        pytest.param("gRPC's path", "1", 2, marks=pytest.mark.slow),
        ("gpu", "2", 2),
    ],
)
def test_a_start_that_cannot_succeed_says_why_in_one_line_and_leaves_nothing(
    fault: str, workers: str, code: int, tmp_path: Path
) -> None:
    folders = ["--store-dir", str(tmp_path / "store"), "--cache-dir", str(tmp_path / "cache")]
    with prepared(fault, tmp_path) as (flags, messages):
        command = [GATHERND, "serve", "--port", "0", "--workers", workers, *folders, *flags]
        variables = {name: value for name, value in os.environ.items() if not name.startswith("GATHERND_")}
        done = run_program(command, variables=variables)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith("gathernd: ")
    assert len(done.stderr.splitlines()) == 1
    assert all(text in done.stderr for text in messages), done.stderr
    assert not re.search(r"\bready\b", done.stdout + done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_a_worker_is_handed_the_settings_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = Settings(
        host="::1",
        port=81,
        allowed_hosts=("a.example", "b.example"),
        cors_origins=("https://app.example",),
        max_json_bytes="3MiB",
        loop_max_us=2.5,
        tls_cert=tmp_path / "cert",
        tls_key=tmp_path / "key",
        api_keys_file=tmp_path / "keys",
    )
    keys = "".join(f"{number:064x} gather key{number}\n" for number in range(20_000))
    last_good = {"keys file": {str(tmp_path / "keys"): keys}}
    start = WorkerStart(worker_settings(settings), [3, 4], 5, 6, 7, first=True, store_token="t", last_good=last_good)
    assert len(keys) > 1 << 20
    with start.write() as file:
        read = WorkerStart.read(os.dup(file.fileno()))
    monkeypatch.setenv("GATHERND_PORT", "no number")
    monkeypatch.setenv("GATHERND_MAX_TENSORS", "5")
    assert Settings(**read.settings) == settings
    assert read == start


def test_a_worker_serves_http_on_a_port_where_its_parent_does(tmp_path: Path) -> None:
    """And may have gRPC on the default port of HTTP where that is on a Unix socket alone."""
    alone = Settings(uds=tmp_path / "http", grpc_port=8080, workers=2)
    assert Settings(**worker_settings(alone)) == alone
    assert not Settings(**worker_settings(alone)).serves_tcp
    both = Settings(uds=tmp_path / "http", port=8080)
    assert Settings(**worker_settings(both)).serves_tcp
    with pytest.raises(ValidationError, match="8080 is already the HTTP port"):
        Settings(uds=tmp_path / "http", port=8080, grpc_port=8080)


def test_a_worker_that_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    settings = Settings(cluster=str(tmp_path / "map"), store_dir=tmp_path / "store", log_format="json")
    ours, theirs = socket.socketpair()
    group = CounterGroup(2)
    with ours, theirs:
        start = WorkerStart(
            settings.model_dump(mode="json"), [], theirs.fileno(), group.fd, 1, first=True, store_token="t"
        )
        with start.write() as file:
            done = subprocess.run(
                [sys.executable, "-c", WORKER_PROGRAM, str(file.fileno())],
                pass_fds=(file.fileno(), start.channel, start.counters),
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
    assert done.returncode == STARTUP_FAILURE
    line = json.loads(done.stderr)
    assert (line["level"], line["logger"]) == ("error", "gathernd")
    assert line["message"] == "this worker cannot start: the file cannot be read: No such file or directory"
