"""`gathernd cluster` with one replica of each range, on a head and two nodes in a network namespace; test_placement.py.

A shard's process is killed: what touches its ranges is shard_unavailable, everything else is answered, and 15 s later
all is served again, since the actor that looks after the process starts it anew.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import ray
from ray.cluster_utils import Cluster

from app.cluster import placement
from benchmarks.common import free_port
from tests.cluster.ray_chain import GATHERND, SMALL, gathernd, publish, say, services, status, until, whole

KILLS = 3
SERVED_AGAIN_S = 15.0


def held_by(name: str) -> dict[int, bool]:
    """The first row of each range, and whether this shard has it."""
    ranges = [part for table in status()["tables"] for part in table["ranges"]]
    found = {part["start"]: [one["node"] for one in part["replicas"]] for part in ranges}
    assert all(len(nodes) == 1 for nodes in found.values()), found
    return {start: nodes == [name] for start, nodes in found.items()}


def ask(client: httpx.Client, rows: list[int]) -> Any:
    """The code of the error, "" where it is answered with ones."""
    indices = {"dtype": "int64", "shape": [len(rows)], "values": rows}
    answer = client.post("/gather", json={"data": {"tensor": "items"}, "indices": indices})
    if answer.is_success:
        assert set(answer.json()["output"]["values"]) == {1}
        return ""
    return answer.json()["code"]


def kill(client: httpx.Client, name: str, pid: int) -> float:
    """Kill a shard's process; for how many seconds its ranges were not served."""
    starts = held_by(name)
    lost, others = [[start for start, lies in starts.items() if lies is which] for which in (True, False)]
    assert lost
    assert others
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    gone = 0.0
    asked = 0
    while True:
        assert ask(client, others) == ""
        codes = {ask(client, [row]) for row in lost} | {ask(client, [*others, lost[0]])}
        assert codes <= {"", "shard_unavailable"}, codes
        now = time.monotonic() - begun
        asked += 1
        if codes == {""}:
            if gone:
                say(f"{name} was killed: not served for {now:.1f} s, and what is elsewhere was, {asked} times")
                return now
        else:
            gone = now
        assert now < SERVED_AGAIN_S, f"not served again after {now:.1f} s"
        time.sleep(0.05)


def main(folder: Path) -> None:
    """Raises AssertionError where something is not as it should be."""
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(**SMALL)
    os.environ["RAY_ADDRESS"] = cluster.address
    flags = [f"--flag=--{text}" for text in ("threads=1", "kernel=numpy")]
    gathernd("cluster", "start", "--data-dir", str(folder / "data"), "--replicas", "1", "--ranges", "3", *flags)
    port = free_port()
    log = (folder / "router.log").open("wb")
    router = subprocess.Popen(
        [GATHERND, "serve", "--cluster", "auto", "--port", str(port), "--kernel", "numpy", "--store-dir",
         str(folder / "router")], stdout=log, stderr=log,
    )  # fmt: skip
    ray.init(address=cluster.address, namespace=placement.NAMESPACE, log_to_driver=False)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:

        def ready() -> bool:
            try:
                return client.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        until(ready, "the router is ready")
        until(lambda: publish(client, 1), "a version is published")
        for number in range(KILLS):
            name, pid = sorted(services().items())[number % 3]
            kill(client, name, pid)
            until(whole, "all ranges are whole")
    gathernd("cluster", "stop")
    router.terminate()
    assert router.wait(30) == 0
    ray.shutdown()
    cluster.shutdown()
    say("all of it holds")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.exit()
