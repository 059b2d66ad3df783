"""The process of a shard: restarted where it ends or stands still, adopted by the next one who looks after it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event

import pytest

from app.cluster.shard import shard_process
from app.cluster.shard.shard_http import ShardClient
from app.cluster.shard.shard_process import ShardProcess, ShardSettings

READY = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Ready).serve_forever()
"""


class Shard(ShardProcess):
    """A shard whose service says that it is ready, and nothing else."""

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-c", READY]


def until_ready(shard: ShardProcess) -> None:
    end = time.monotonic() + 120
    while not ShardClient(shard.address, None, 1.0).readiness():
        assert time.monotonic() < end
        shard.look()
        time.sleep(0.05)
    shard.look()


@pytest.fixture(params=[Shard, pytest.param(ShardProcess, marks=pytest.mark.soak)])
def shard(
    request: pytest.FixtureRequest, warmed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ShardProcess]:
    monkeypatch.setenv("GATHERND_CACHE_DIR", str(warmed))
    made: ShardProcess = request.param(ShardSettings("127.0.0.1", tmp_path / "shard", "k" * 20, 10**9))
    made.begin()
    made.wait_until_ready(Event())
    yield made
    made.stop()


def test_a_process_that_is_killed_is_started_again_at_its_address(shard: ShardProcess) -> None:
    address, pid = shard.address, shard.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until_ready(shard)
    assert shard.address == address
    assert shard.pid != pid


def test_a_process_that_stands_still_is_killed_and_started_again(
    shard: ShardProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_process, "STANDS_STILL_S", 0.2)
    pid = shard.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    until_ready(shard)
    assert shard.pid != pid


def test_the_next_one_adopts_the_process_and_a_stop_ends_it(shard: ShardProcess, tmp_path: Path) -> None:
    other = type(shard)(ShardSettings("127.0.0.1", tmp_path / "shard", "k" * 20, 10**9))
    other.begin()
    assert (other.pid, other.address) == (shard.pid, shard.address)
    other.stop()
    assert not ShardClient(shard.address, None, 1.0).readiness()
    other.begin()
    assert other.pid != shard.pid
    other.stop()


def test_a_process_of_another_program_with_the_same_id_is_not_adopted(shard: ShardProcess, tmp_path: Path) -> None:
    address = shard.address
    shard.stop()
    document = {"pid": os.getpid(), "started": 1, "port": int(address.rpartition(":")[2])}
    (tmp_path / "shard/process.json").write_text(json.dumps(document))
    shard.begin()
    assert shard.pid != os.getpid()
    assert shard.address == address
    until_ready(shard)


def test_it_asks_for_the_key_and_has_no_settings_of_whoever_starts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GATHERND_CLUSTER", "OMP_NUM_THREADS", "RAY_JOB_ID"):
        monkeypatch.setenv(name, "1")
    left = shard_process._environment(os.environ)
    assert not {"GATHERND_CLUSTER", "OMP_NUM_THREADS", "RAY_JOB_ID"} & set(left)
    assert "PATH" in left
    made = ShardProcess(ShardSettings("127.0.0.1", tmp_path, "key", 7, ("--threads", "1")))
    made._write_keys()
    assert (tmp_path / "keys").read_text().endswith(" gather,tensors cluster\n")
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600
    assert {"--api-keys-file", "--max-store-bytes", "7", "--threads"} <= set(made._command())
