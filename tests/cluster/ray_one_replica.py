"""`gathernd cluster` with one replica of each range, on a head and two nodes in a network namespace;
test_ray_launcher.py.

A shard's process is killed, every second time with the actor that looks after it: what touches its ranges is
shard_unavailable, everything else is answered, and before long all is served again, since Ray starts the actor anew,
and the actor the process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import ray
from ray.cluster_utils import Cluster

from app.cluster import ray_launcher
from benchmarks.common import free_port
from tests.cluster.databases import running_database
from tests.cluster.ray_chain import GATHERND, SMALL, actor_of, gathernd, publish, say, services, status, whole
from tests.cluster.waiting import until

KILLS = 8
SERVED_AGAIN_S = 100.0


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


def kill(client: httpx.Client, name: str, pid: int, *, with_actor: bool) -> float:
    """Kill a shard's process; for how many seconds its ranges were not served."""
    starts = held_by(name)
    lost, others = [[start for start, lies in starts.items() if lies is which] for which in (True, False)]
    assert lost
    assert others
    if with_actor:
        ray.kill(actor_of(name), no_restart=False)
    with suppress(ProcessLookupError):  # it has ended with its actor
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
                killed = f"{name} and its actor were" if with_actor else f"{name} was"
                say(f"{killed} killed: not served for {now:.1f} s, and what is elsewhere was, {asked} times")
                return now
        else:
            gone = now
        assert now < SERVED_AGAIN_S, f"not served again after {now:.1f} s"
        time.sleep(0.05)


def main(folder: Path) -> None:
    """Raises AssertionError where something is not as it should be."""
    with running_database(folder / "database") as database:
        os.environ["GATHERND_CLUSTER"] = database.cluster
        run(folder)


def run(folder: Path) -> None:
    """With a catalogue."""
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(**SMALL)
    os.environ["RAY_ADDRESS"] = cluster.address
    flags = [f"--flag=--{text}" for text in ("threads=1", "kernel=numpy")]
    gathernd("cluster", "start", "--data-dir", str(folder / "data"), "--replicas", "1", "--ranges", "3", *flags)
    port = free_port()
    log = (folder / "router.log").open("wb")
    router = subprocess.Popen(
        [GATHERND, "serve", "--port", str(port), "--kernel", "numpy", "--store-dir",
         str(folder / "router")], stdout=log, stderr=log,
    )  # fmt: skip
    ray.init(address=cluster.address, namespace=ray_launcher.NAMESPACE, log_to_driver=False)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:

        def ready() -> bool:
            try:
                return client.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        until(ready, "the router is ready")
        until(lambda: publish(client, 1), "a version is published")
        assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in services().values()} == {os.nice(0)}
        taken: dict[bool, list[float]] = {False: [], True: []}
        for number in range(KILLS):
            until(lambda: len(services()) == 3, "all actors are there")
            name, pid = sorted(services().items())[number % 3]
            with_actor = number % 2 == 1
            taken[with_actor].append(kill(client, name, pid, with_actor=with_actor))
            until(whole, "all ranges are whole")
        for with_actor, seconds in taken.items():
            what = "with its actor" if with_actor else "alone"
            say(f"killed {what}: served again after {min(seconds):.1f} to {max(seconds):.1f} s, {len(seconds)} times")
    gathernd("cluster", "stop")
    router.terminate()
    assert router.wait(60) == 0
    ray.shutdown()
    cluster.shutdown()
    say("all of it holds")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.exit()
