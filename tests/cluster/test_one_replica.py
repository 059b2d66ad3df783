"""One replica of each range, and its process dies: what needs its rows is shard_unavailable, and not for long.

Each shard's process has a keeper of its own (`ShardProcess`), as an actor of Ray is one; `ray_one_replica.py` is the
same on Ray.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import httpx
import numpy as np
import pytest

from app.cluster.shard.shard_process import LOOK_S, ShardProcess, ShardSettings
from tests.cluster.running import cuts, put, routing
from tests.http.conftest import Start
from tests.http.forms import int64

SERVED_AGAIN_S = 15.0
TABLE = np.arange(4000 * 16, dtype=np.float32).reshape(4000, 16)
RANGES = cuts(len(TABLE), 4)


@contextmanager
def kept(folder: Path) -> Iterator[ShardProcess]:
    """A shard whose process is started again where it ends or stands still."""
    shard, stop = ShardProcess(ShardSettings("127.0.0.1", folder, None, flags=("--kernel", "numpy"))), Event()

    def keep() -> None:
        shard.begin()
        shard.wait_until_ready(stop)
        while not stop.wait(LOOK_S):
            shard.look()

    keeper = Thread(target=keep)
    keeper.start()
    try:
        yield shard
    finally:
        stop.set()
        keeper.join()
        shard.stop()


def until(look: Callable[[], object]) -> None:
    end = monotonic() + 60
    while not look():
        assert monotonic() < end
        sleep(0.05)


def is_ready(shard: ShardProcess) -> bool:
    try:
        return shard.pid is not None and httpx.get(f"http://{shard.address}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False


def write_map(path: Path, shards: list[ShardProcess]) -> None:
    """Each range on one shard, by turns."""
    ranges = []
    for number, (start, stop) in enumerate(RANGES):
        address = shards[number % len(shards)].address
        with httpx.Client(base_url=f"http://{address}", trust_env=False, timeout=60) as client:
            put(client, f"r{start}", TABLE[start:stop])
        ranges.append({"start": start, "stop": stop, "tensor": f"r{start}@1", "replicas": [{"address": address}]})
    version = {"number": 1, "content_id": "c", "dtype": "float32", "shape": TABLE.shape, "ranges": ranges}
    path.write_text(json.dumps({"tables": {"items": {"versions": [version]}}}))


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
def test_only_what_needs_the_lost_range_fails_and_for_15_s_at_most(
    start: Start, warmed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("GATHERND_CACHE_DIR", str(warmed))
    with kept(tmp_path / "a") as first, kept(tmp_path / "b") as second, kept(tmp_path / "c") as third:
        shards = [first, second, third]
        until(lambda: all(map(is_ready, shards)))
        write_map(tmp_path / "map.json", shards)
        lost, others = RANGES[1], [start for start, _ in (RANGES[0], *RANGES[2:])]
        flags = "--kernel", "numpy", "--shard-timeout", "0.5"
        with routing(start, tmp_path / "map.json", *flags) as router, router.client() as client:
            assert ask(client, [lost[0], *others]) == {}
            assert second.pid is not None
            os.kill(second.pid, number)
            begun, failed = monotonic(), 0
            while problem := ask(client, [lost[0], *others]) or ask(client, [lost[1] - 1]):
                assert problem["code"] == "shard_unavailable"
                assert problem["ranges"] == [{"tensor": "items@1", "start": lost[0], "stop": lost[1]}]
                assert ask(client, others) == {}
                failed += 1
                assert monotonic() - begun < SERVED_AGAIN_S
                sleep(0.05)
            assert failed
