"""`gathernd cluster`: what it prints and refuses, with a coordinator and no Ray; tests/cluster tries it on Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from app.cli import cluster_command
from app.cluster.coordinator.cluster_options import ClusterOptions
from app.cluster.coordinator.coordinator_link import exchange
from app.cluster.coordinator.messages import Held, Hold, MapRequest, Placed, Publish, Published
from app.cluster.shard.held_ranges import HeldRanges, StoredRange
from tests.cluster.coordinated import OPTIONS, RunningCoordinator, until


class Machines:
    """A coordinator with three machines that hold whatever they are told to, in the place of `placement`."""

    def __init__(self) -> None:
        self.coordinator = RunningCoordinator(OPTIONS)
        self.machines = {f"m{n}": HeldRanges(f"m{n}", f"10.0.0.{n}:80", 1, 10**6) for n in range(3)}
        self.stopped: list[str] = []
        self.coordinator_stopped = False
        until(lambda: exchange(self.coordinator, "r", [MapRequest(-1)]), "the coordinator answers")
        self.hear()

    def hear(self) -> None:
        """Every machine tells what it has, and does what it is told."""
        for machine in self.machines.values():
            found = exchange(self.coordinator, machine.address, [machine.inventory()])
            for order in found:
                if isinstance(order, Hold):
                    machine.appeared(StoredRange(order.key, order.size, "d"))
                    held = Held(machine.node, order.key, order.stamp, "d")
                    exchange(self.coordinator, machine.address, [held])

    def publish(self) -> None:
        asked = Publish("c1", "items", "float32", (10, 4), 16, 1, 0)
        until(lambda: self._published(exchange(self.coordinator, "p", [asked])), "it is published")

    def _published(self, found: list[Any]) -> bool:
        self.hear()
        assert all(isinstance(one, Placed | Published) for one in found), found
        return any(isinstance(one, Published) for one in found)

    # As `placement`

    def ActorLink(self) -> Any:  # noqa: N802
        def status() -> Any:
            self.hear()
            return json.loads(json.dumps(self.coordinator.status()))

        return SimpleNamespace(
            exchange=self.coordinator.exchange,
            status=status,
            options=lambda: self.coordinator.options,
            key=lambda: "the key",
        )

    def start_coordinator(self, options: ClusterOptions, key: str) -> None:
        assert key.startswith("gathernd_")
        assert asdict(options)

    def ShardsWanted(self, *given: Any) -> Any:  # noqa: N802
        return given

    def want_shards(self, spec: Any) -> None:
        self.wanted = spec

    def start_shards(self, spec: Any, key: str) -> list[str]:
        assert spec == self.wanted
        self.key = key
        return ["m0"]

    def shard_actors(self) -> dict[str, Any]:
        return {name: None for name in self.machines if name not in self.stopped}

    def stop_shard(self, name: str) -> None:
        self.stopped.append(name)

    def stop_coordinator(self) -> None:
        self.coordinator_stopped = True


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machines]:
    made = Machines()

    monkeypatch.setattr(cluster_command, "_on_ray", lambda _, work: work(made))
    monkeypatch.setattr(cluster_command, "_LOOK_S", 0.05)
    yield made
    made.coordinator.close()


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cluster_command.app, arguments)
    assert done.exit_code == code, done.output
    return done


ON_RAY = """
import os, sys
from types import ModuleType
from app.cli import cluster_command
placement = sys.modules["app.cluster.placement"] = ModuleType("placement")
placement.ActorLink = lambda: placement
def connect(address):
    print("what Ray prints", flush=True)
    os.write(1, b"what Ray writes")
    if address == "gone":
        os._exit(0)
    if address == "nobody":
        raise OSError("no Ray cluster answers")
placement.connect = connect
placement.status = lambda: {"generation": 7}
cluster_command.find_spec = lambda _: True
cluster_command.app()
"""


@pytest.mark.parametrize(
    ("address", "printed", "code", "said"),
    [("there", {"generation": 7}, 0, ""), ("gone", None, 1, "Ray has ended"), ("nobody", None, 1, "answers")],
)
def test_status_prints_all_or_fails(address: str, printed: object, code: int, said: str) -> None:
    """Ray prints on standard output, and ends its process with any exit code."""
    command = [sys.executable, "-c", ON_RAY, "status", "--json", "--ray", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert (json.loads(done.stdout) if done.stdout else None) == printed
    assert said in done.stderr
    assert "what Ray prints" in done.stderr


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_it_says_what_to_install() -> None:
    assert "pip install ./clients/python '.[cluster]'" in run("status", code=1).output


def test_status_lists_machines_and_ranges(machines: Machines) -> None:
    assert run("status").stdout.splitlines()[0].split("\t") == ["m0", "10.0.0.0:80", "serving", "0", "0", "1000000"]
    machines.publish()
    nodes, ranges = run("status").stdout.split("\n\n")
    assert sum(int(line.split("\t")[3]) for line in nodes.splitlines()) == 8
    rows = [line.split("\t") for line in ranges.splitlines()]
    assert [row[:3] for row in rows] == [
        ["items@1", "0-1", "32"], ["items@1", "2-4", "48"], ["items@1", "5-6", "32"], ["items@1", "7-9", "48"],
    ]  # fmt: skip
    assert all(len(row[3].split(", ")) == 2 for row in rows)
    assert json.loads(run("status", "--json").stdout)["tables"][0]["table"] == "items"


def test_a_drained_shard_is_ended_once_others_have_its_ranges(machines: Machines) -> None:
    machines.publish()
    assert "there is no shard 'm9'; there are m0, m1, m2" in run("drain", "m9", code=1).output
    run("drain", "m1")
    assert machines.stopped == ["m1"]
    status = machines.ActorLink().status()
    assert status["draining"] == ["m1"]
    assert all(replica["node"] != "m1" for one in status["tables"][0]["ranges"] for replica in one["replicas"])


def test_a_drain_that_cannot_end_says_so(machines: Machines) -> None:
    machines.publish()
    del machines.machines["m2"]
    machines.machines["m0"] = HeldRanges("m0", "10.0.0.0:80", 2, 1)
    assert "is there room on others?" in run("drain", "m1", "--wait", "0.3", code=1).output
    assert machines.stopped == []


def test_start_hands_on_what_it_is_given_and_takes_drained_machines_back(machines: Machines) -> None:
    run("drain", "m0")
    machines.stopped.clear()
    done = run("start", "--shards", "3", "--data-dir", "/data", "--shard-bytes", "9999999", "--flag=--threads=1")
    assert done.stdout == "1 shards started, 3 serve\n"
    assert (machines.wanted, machines.key) == ((3, "/data", 9999999, ("--threads", "1"), None, ()), "the key")
    assert machines.ActorLink().status()["draining"] == []
    assert "cuts into 4 ranges with 2 replicas" in run("start", "--ranges", "7").output


def test_stop_ends_all(machines: Machines) -> None:
    assert run("stop").stdout == "3 shards have ended\n"
    assert machines.wanted is None
    assert (sorted(machines.stopped), machines.coordinator_stopped) == (["m0", "m1", "m2"], True)
