"""`gathernd cluster` on a Ray cluster of a head and three nodes, in a network namespace: see test_ray_launcher.py.

A router is asked for rows all the time, while versions are published, processes are killed or stand still, actors, a
member of etcd and a node are lost, a node is added and a shard is drained. No answer may be an error, or of two
versions.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
import ray
from ray.cluster_utils import Cluster

from app.cluster import ray_launcher
from app.cluster.child_process import is_live
from tests.cluster.databases import EtcdMembers
from tests.cluster.waiting import until
from tests.free_port import free_port

ROWS, WIDTH = 4000, 16
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
HEAD_AWAY_S = 2.0
GATHERND = str(Path(sys.executable).with_name("gathernd"))


def gathernd(*arguments: str, code: int = 0) -> str:
    """What a command prints."""
    done = subprocess.run([GATHERND, *arguments], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done.stdout


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def services() -> dict[str, int]:
    """The process ids of the shards' services, by the shards' names."""
    return {name: pid for name, pid in ray_launcher.shard_pids().items() if pid is not None}


def actor_of(name: str) -> Any:
    """The actor of a shard."""
    return ray.get_actor(f"{ray_launcher.SHARD}{name}@{ray_launcher.shard_places()[name]}")


def runs(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def status() -> Any:
    return json.loads(gathernd("cluster", "status", "--json"))


def whole() -> bool:
    """Whether every range has its replicas, and each of them is where the catalogue says."""
    found = status()
    replicas = [one for table in found["tables"] for part in table["ranges"] for one in part["replicas"]]
    return not found["short"] and all(one["whole"] for one in replicas)


def addresses() -> dict[str, str]:
    """Where the shards answer that run, by their names."""
    return {one["node"]: one["address"] for one in status()["nodes"] if one["state"] != "lost"}


def publish(client: httpx.Client, number: int) -> bool:
    """Whether a version was published; not where a shard is lost, and nobody knows it yet."""
    table = np.full((ROWS, WIDTH), number, np.float32)
    answer = client.put(
        "/tensors/items", params={"dtype": "float32", "shape": f"{ROWS},{WIDTH}"}, content=table.tobytes(),
        headers={"content-type": "application/octet-stream"},
    )  # fmt: skip
    assert answer.is_success or answer.json()["code"] == "shard_unavailable", answer.text
    if answer.is_success:
        for _ in range(6):  # connections, each of which any worker may have
            described = httpx.get(client.base_url.join("/tensors/items"), trust_env=False).json()
            assert described.pop("ranges")
            assert described == answer.json()
    return answer.is_success


class Load:
    """Asks for rows of all ranges, all the time."""

    def __init__(self, url: str) -> None:
        self.over, self.failures, self.answers = Event(), list[str](), 0
        self.threads = [Thread(target=self._ask, args=(url, seed)) for seed in range(2)]
        for thread in self.threads:
            thread.start()

    def _ask(self, url: str, seed: int) -> None:
        random = np.random.default_rng(seed)
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
            while not self.over.is_set():
                rows = random.integers(0, ROWS, 64).tolist()
                indices = {"dtype": "int64", "shape": [len(rows)], "values": rows}
                answer = client.post("/gather", json={"data": {"tensor": "items"}, "indices": indices})
                self.answers += 1
                if not answer.is_success:
                    self.failures.append(answer.text)
                elif len(set(answer.json()["output"]["values"])) != 1:
                    self.failures.append("rows of several versions")
                time.sleep(0.005)

    def check(self, what: str) -> None:
        """Nothing has failed so far."""
        assert not self.failures, (what, self.failures[:3])
        assert self.answers, what
        say(f"{what}: {self.answers} answers")

    def end(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()


def main(folder: Path) -> None:
    """Raises AssertionError where something is not as it should be."""
    redis_port = free_port()
    redis = subprocess.Popen(
        ["redis-server", "--port", str(redis_port), "--bind", "127.0.0.1", "--appendonly", "yes", "--dir", str(folder)],
        stdout=subprocess.DEVNULL,
    )
    os.environ["RAY_REDIS_ADDRESS"] = f"127.0.0.1:{redis_port}"
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    nodes = [cluster.add_node(**SMALL) for _ in range(3)]
    assert cluster.address.startswith("127.0.0.1:"), cluster.address
    os.environ["RAY_ADDRESS"] = cluster.address
    members = EtcdMembers(folder)
    os.environ["GATHERND_CLUSTER"] = members.cluster
    flags = [f"--flag=--{text}" for text in ("threads=1", "kernel=numpy")]
    say(gathernd("cluster", "start", "--data-dir", str(folder / "data"), "--shard-bytes", "50000000", *flags))
    port = free_port()
    log = (folder / "router.log").open("wb")
    router = subprocess.Popen(
        [GATHERND, "serve", "--port", str(port), "--kernel", "numpy", "--workers", "2",
         "--store-dir", str(folder / "router")], stdout=log, stderr=log,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    ray.init(address=cluster.address, namespace=ray_launcher.NAMESPACE, log_to_driver=False)
    with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:

        def ready() -> bool:
            try:
                return client.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        until(ready, "the router is ready")
        assert publish(client, 0)
        load = Load(url)
        try:
            for number in range(1, 5):
                assert publish(client, number)
            load.check("versions published")
            for kill, number in enumerate((signal.SIGKILL, signal.SIGSTOP)):
                name, victim = sorted(services().items())[kill % 3]
                os.kill(victim, number)
                until(lambda: services().get(name, victim) != victim, "it runs again")  # noqa: B023
                until(whole, "all replicas are there again")
                until(lambda: is_live(addresses().get(name, "127.0.0.1:1")), "it answers again")  # noqa: B023
                load.check(f"a shard was sent {number.name}")
            name, pid = min(services().items())
            ray.kill(actor_of(name), no_restart=False)
            until(lambda: not runs(pid), "its process has ended with the actor")
            until(lambda: services().get(name, pid) != pid, "the actor is back, with another process")
            until(whole, "all replicas are there again")
            load.check("an actor was killed, and its process with it")
            before = status()["reconciler"]
            ray.kill(ray.get_actor(ray_launcher.LAUNCHER), no_restart=False)
            until(lambda: publish(client, 21), "a version is published")
            until(lambda: status()["reconciler"] not in (None, before), "another reconciler is in office")
            until(whole, "all replicas are whole")
            load.check("the launcher was killed, and its reconciler with it")
            members.stop(0)
            until(lambda: publish(client, 22), "a version is published")
            members.begin(0)
            load.check("a member of etcd was killed, and a version published")
            cluster.head_node.kill_gcs_server()
            time.sleep(HEAD_AWAY_S)
            load.check("the head was away")
            cluster.head_node.start_gcs_server()
            assert publish(client, 23)
            load.check("the head is back, and a version published")
            assert len(set(ray_launcher.shard_places().values())) == 4
            cluster.add_node(**SMALL)
            until(lambda: len(services()) == 5, "a shard is started on the new node")
            until(lambda: publish(client, 24), "a version is published")
            until(lambda: all(node["ranges"] for node in status()["nodes"]), "the new node has ranges")
            until(whole, "all replicas are whole")
            load.check("a node was added, and took ranges")
            drained = status()["nodes"][0]["node"]
            draining = Thread(target=gathernd, args=("cluster", "drain", drained))
            draining.start()
            until(lambda: publish(client, 25), "a version is published")
            draining.join()
            assert not any(one["ranges"] for one in status()["nodes"] if one["node"] == drained)
            until(whole, "all replicas are whole")
            load.check("a shard was drained")
            places = {place: name for name, place in ray_launcher.shard_places().items() if name != drained}
            node = next(one for one in nodes if one.node_id in places)
            name = places[node.node_id]
            pid = services()[name]
            cluster.remove_node(node, allow_graceful=False)
            until(lambda: name not in addresses(), "it is lost")
            until(lambda: not runs(pid), "its process has ended")
            shutil.rmtree(folder / "data" / name)
            until(lambda: not any(one["ranges"] for one in status()["nodes"] if one["node"] == name), "others have all")
            until(whole, "all replicas are whole")
            load.check("a node was lost")
            until(lambda: publish(client, 26), "a version is published")
        finally:
            load.end()
    say(gathernd("cluster", "status"))
    pids = services().values()
    gathernd("cluster", "stop")
    assert not any(runs(pid) for pid in pids)
    router.terminate()
    assert router.wait(60) == 0
    assert "Traceback" not in (folder / "router.log").read_text(), (folder / "router.log").read_text()[-3000:]
    ray.shutdown()
    cluster.shutdown()
    members.stop()
    redis.terminate()
    redis.wait(20)
    say("all of it holds")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.exit()
