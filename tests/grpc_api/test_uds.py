"""GATHERND_GRPC_UDS: gRPC on a Unix socket."""

from __future__ import annotations

import signal
import stat
import subprocess
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from tests.grpc_api.messages import Channel, example, output
from tests.http.conftest import Start
from tests.http.server import GATHERND


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
        assert server.process.wait(30) == 0, server.log_text()
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


@pytest.mark.slow
def test_one_worker_serves_it(tmp_path: Path) -> None:
    command = [GATHERND, "serve", "--port", "0", "--workers", "2", "--grpc-uds", str(tmp_path / "grpc.sock")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done
    assert "GATHERND_WORKERS=1" in done.stderr
