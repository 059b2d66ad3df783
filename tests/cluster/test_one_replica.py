"""One replica of each range, and its process dies: what needs its rows is shard_unavailable until it is started again.

Each shard's process has a keeper of its own (`ChildProcess`), as in an actor of Ray.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import httpx
import numpy as np
import pytest

from app.cluster.child_process import ChildProcess, answers
from tests.cluster.running import cuts, put, routing
from tests.free_port import free_port
from tests.http.conftest import Start
from tests.http.forms import int64

TABLE = np.arange(4000 * 16, dtype=np.float32).reshape(4000, 16)
RANGES = cuts(len(TABLE), 4)


@dataclass
class Kept:
    """A shard whose process is started again where it ends or stands still."""

    process: ChildProcess
    address: str


@contextmanager
def kept(folder: Path) -> Iterator[Kept]:
    folder.mkdir()
    address = f"127.0.0.1:{free_port()}"
    command = [
        sys.executable, "-m", "app.cli", "serve", "--port", address.rpartition(":")[2], "--kernel", "numpy",
        "--store-dir", str(folder / "store"),
    ]  # fmt: skip
    process, stop = ChildProcess(lambda: command, folder / "log", lambda: answers(address)), Event()
    keeper = Thread(target=process.run, args=(stop,))
    keeper.start()
    try:
        yield Kept(process, address)
    finally:
        stop.set()
        keeper.join()


def until(look: Callable[[], object]) -> None:
    end = monotonic() + 60
    while not look():
        assert monotonic() < end
        sleep(0.05)


def is_ready(shard: Kept) -> bool:
    try:
        return httpx.get(f"http://{shard.address}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False


def holders(shards: list[Kept]) -> list[tuple[int, int, str]]:
    """Each range on one shard, by turns: its rows, and where it answers."""
    return [(start, stop, shards[number % len(shards)].address) for number, (start, stop) in enumerate(RANGES)]


def put_ranges(shards: list[Kept]) -> None:
    for start, stop, address in holders(shards):
        with httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=60) as client:
            put(client, f"r{start}", TABLE[start:stop])


def write_map(path: Path, shards: list[Kept]) -> None:
    ranges = [
        {"start": start, "stop": stop, "tensor": f"r{start}@1", "replicas": [{"address": address}]}
        for start, stop, address in holders(shards)
    ]
    version = {"number": 1, "content_id": "c", "dtype": "float32", "shape": TABLE.shape, "ranges": ranges}
    beside = path.with_suffix(".new")
    beside.write_text(json.dumps({"tables": {"items": {"versions": [version]}}}))
    beside.rename(path)


def ask(client: httpx.Client, rows: list[int]) -> Mapping[str, Any]:
    """The error, empty where the rows are answered, which they are rightly."""
    answer = client.post("/gather", json={"data": {"tensor": "items"}, "indices": int64([len(rows)], rows)})
    if answer.is_success:
        assert answer.json()["output"]["values"] == TABLE[rows].reshape(-1).tolist()
        return {}
    found: Mapping[str, Any] = answer.json()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.soak)])
def test_only_what_needs_the_lost_range_fails_until_it_is_served_again(
    start: Start, warmed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("GATHERND_CACHE_DIR", str(warmed))
    with kept(tmp_path / "a") as first, kept(tmp_path / "b") as second, kept(tmp_path / "c") as third:
        shards = [first, second, third]
        until(lambda: all(map(is_ready, shards)))
        put_ranges(shards)
        write_map(tmp_path / "map.json", shards)
        lost, others = RANGES[1], [start for start, _ in (RANGES[0], *RANGES[2:])]
        flags = "--kernel", "numpy", "--shard-timeout", "2"
        with routing(start, tmp_path / "map.json", *flags) as router, router.client() as client:
            assert ask(client, [lost[0], *others]) == {}
            assert second.process.pid is not None
            os.kill(second.process.pid, number)
            begun, failed = monotonic(), 0
            while problem := ask(client, [lost[0], *others]) or ask(client, [lost[1] - 1]):
                assert problem["code"] == "shard_unavailable"
                assert problem["ranges"] == [{"tensor": "items@1", "start": lost[0], "stop": lost[1]}]
                assert ask(client, others) == {}
                failed += 1
                assert monotonic() - begun < 100
                sleep(0.05)
            assert failed
