"""What runs on Ray: with a stand-in for Ray's public interface, and on Ray itself, in a network namespace of its own.

Ray takes no address but loopback there.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from app.cluster.catalogue.records import Change, Mark, Node, Options
from tests.cluster.clustered import catalogue_client
from tests.cluster.databases import running_database
from tests.cluster.waiting import until
from tests.conftest import TEST_ALL
from tests.needs import ROOT, in_environment, skip_without

NAMESPACE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


class StandIn(ModuleType):
    """As much of Ray as the launcher uses: its machines, and the actors that were started on them."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.machines: dict[str, bool] = {}
        self.actors: dict[str, tuple[Any, ...]] = {}
        self.exceptions = ModuleType("ray.exceptions")
        self.exceptions.RayError = RuntimeError  # type: ignore[attr-defined]
        self.util = ModuleType("ray.util")
        self.util.list_named_actors = lambda all_namespaces: [  # type: ignore[attr-defined]
            {"name": name, "namespace": "gathernd"} for name in self.actors
        ]
        self.strategies = ModuleType("ray.util.scheduling_strategies")
        self.strategies.NodeAffinitySchedulingStrategy = lambda node, soft: node  # type: ignore[attr-defined]

    def nodes(self) -> list[dict[str, Any]]:
        host = {"NodeManagerHostname": "a host", "NodeManagerAddress": "10.0.0.1"}
        return [{"NodeID": name, "Alive": is_alive, **host} for name, is_alive in self.machines.items()]

    def remote(self, _: type) -> StandIn:
        return self

    def options(self, **options: Any) -> StandIn:
        made = StandIn()
        made.remote = lambda *given: self.actors.update({options["name"]: given})  # type: ignore[assignment,method-assign]
        return made


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    found = StandIn()
    modules = (found, found.exceptions, found.util, found.strategies)
    monkeypatch.delitem(sys.modules, "app.cluster.ray_launcher", raising=False)
    for module in modules:
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield found
    sys.modules.pop("app.cluster.ray_launcher", None)


@contextmanager
def launched(cluster: str, folder: Path) -> Iterator[Any]:
    """The launcher's actor, and its module."""
    launcher = importlib.import_module("app.cluster.ray_launcher")
    actor = launcher.LauncherActor(asdict(launcher.Launch(cluster, str(folder), flags=("--threads=1",))))
    try:
        yield launcher
    finally:
        actor.stop()


@pytest.mark.slow
def test_shards_are_started_on_machines_that_come_and_given_up_where_they_go(ray: StandIn, tmp_path: Path) -> None:
    with running_database(tmp_path / "database") as database, catalogue_client(database) as client:
        client.transact(lambda _: Change({"options": Options(key="k")}))
        ray.machines = {"m1": True, "m2": True}
        with launched(database.cluster, tmp_path):
            until(lambda: len(ray.actors) == 2, "a shard is started on each machine")
            assert set(ray.actors) == {"gathernd-shard-a-host-0@m1", "gathernd-shard-a-host-1@m2"}
            name, host, launch = ray.actors["gathernd-shard-a-host-1@m2"]
            assert (name, host, launch["flags"]) == ("a-host-1", "10.0.0.1", ("--threads=1",))
            until(lambda: client.refresh().reconciler, "a reconciler is in office")
            del ray.actors["gathernd-shard-a-host-1@m2"]
            until(lambda: len(ray.actors) == 2, "an actor that has failed is started again")
            records = {f"nodes/a-host-{number}": Node(f"10.0.0.1:100{number}", 1) for number in range(2)}
            marks = {f"alive/a-host-{number}": Mark() for number in range(2)}
            client.transact(lambda _: Change({**records, **marks}))
            # Ray does not know a machine for a moment, or says that it is dead.
            ray.machines = {"m2": False}
            del ray.actors["gathernd-shard-a-host-1@m2"]
            until(lambda: client.refresh().alive == {"a-host-0"}, "the shard of the dead machine is lost")
            # A machine that comes back has another id, and finds the folder of its shard.
            ray.machines = {"m1": True, "m2": False, "m3": True}
            until(lambda: "gathernd-shard-a-host-1@m3" in ray.actors, "it has its shard again")
            assert client.refresh().alive == {"a-host-0"}
        assert client.refresh().reconciler is None


def test_shards_of_a_given_number_are_spread_over_the_machines(ray: StandIn) -> None:
    launcher = importlib.import_module("app.cluster.ray_launcher")
    machines = {name: {"NodeManagerHostname": name} for name in ("a", "b")}
    found = launcher.missing_shards(machines, {"a-0": "a"}, 4)
    assert found == [("b-0", "b"), ("a-1", "a"), ("b-1", "b")]
    assert launcher.missing_shards(machines, {"a-0": "a"}, 1) == []
    assert launcher.missing_shards({}, {}, 4) == []


@pytest.mark.timeout(900)
def test_a_cluster_on_ray() -> None:
    """All that users do."""
    skip_without(**{"redis-server": "redis-server", "etcd": "etcd-server"})
    python = in_environment(".venv-cluster/bin/python", "cluster")
    if not TEST_ALL:
        pytest.skip("runs under make test-all")  # here, so that what is missing is named before
    if not _has_namespaces():
        pytest.skip("a network namespace cannot be made here")
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # a short path: the names of Ray's sockets hold it
    script = 'ip link set lo up && exec "$0" "$@"'
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    environment |= {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}
    environment |= {"RAY_TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*NAMESPACE, "bash", "-c", script, str(python), "-m", "tests.cluster.ray_chain", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("all of it holds\n"), done.stdout[-6000:] + done.stderr[-6000:]
    shutil.rmtree(folder, ignore_errors=True)
