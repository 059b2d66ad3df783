"""`gathernd cluster`: what it prints, changes and refuses, without Ray; tests/cluster tries it on Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from app.cli import cluster_command
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.records import Change, Mark, Node, Options, Record, Segment, Table, Version
from app.tensors.dtypes import DTYPES
from tests.cluster.clustered import catalogue_client
from tests.cluster.databases import RunningDatabase, running_database
from tests.cluster.shard_nodes import KEY, address_of, client_of, give, shard
from tests.cluster.waiting import until
from tests.for_each import for_each
from tests.free_port import free_port
from tests.http.server import GATHERND

NODES = {name: Node(f"127.0.0.1:{port}", 10**6, zone) for name, port, zone in (("a", 9, "x"), ("b", 10, "y"))}
ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDatabase]:
    with running_database(tmp_path_factory.mktemp("database")) as found:
        yield found


@pytest.fixture
def client(database: RunningDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[CatalogueClient]:
    """A client of a catalogue that is empty."""
    monkeypatch.setenv("GATHERND_CLUSTER", database.cluster)
    monkeypatch.setattr(cluster_command, "_LOOK_S", 0.05)
    with catalogue_client(database) as found:
        found.transact(lambda at: Change(dict.fromkeys(at.revisions)))
        yield found


def fill(client: CatalogueClient, **nodes: Node) -> None:
    """A catalogue of a table in two ranges, each on both shards."""
    segments = tuple(Segment(start, start + 5, 80, ("a", "b"), "d") for start in (0, 5))
    version = Version(1, "c1", DTYPES["float32"], (10, 4), segments, 1, "d", 160)
    records: dict[str, Record] = {f"nodes/{name}": node for name, node in nodes.items()}
    records |= {f"alive/{name}": Mark() for name in nodes}
    records |= {"tables/items": Table((version,), 1, 1), "options": Options(key=KEY)}
    client.transact(lambda _: Change(records))


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cluster_command.app, arguments)
    assert done.exit_code == code, done.output
    return done


def test_init_writes_options_and_changes_those_that_are_given_later(client: CatalogueClient) -> None:
    assert run("init", "--ranges", "7").stdout == "new versions are cut into 7 ranges with 2 replicas each\n"
    options = client.refresh().options
    assert (options.ranges, options.replicas, options.segment_bytes) == (7, 2, 1 << 34)
    assert options.key is not None
    assert options.key.startswith("gathernd_")
    assert options.cluster
    run("init")
    assert client.refresh().options == options
    run("init", "--replicas", "3", "--segment-bytes", "1.5GiB")
    assert client.refresh().options == replace(options, replicas=3, segment_bytes=3 << 29)
    assert "'-1' is not a number of bytes" in run("init", "--segment-bytes", "-1", code=2).output


@for_each("command", ["init", "status", "drain a", "undrain a", "reconcile"])
def test_an_address_that_cannot_be_is_named(command: str) -> None:
    name, *rest = command.split()
    assert "is not HOST:PORT" in run(name, *rest, "--cluster", "etcd://a", code=1).output


def test_etcd_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.cluster.catalogue.client.ANSWER_S", 0.1)
    for name, *rest in (["init"], ["status"], ["undrain", "a"]):
        assert "etcd does not answer" in run(name, *rest, "--cluster", f"etcd://127.0.0.1:{free_port()}", code=1).output


def test_status_lists_shards_and_ranges(client: CatalogueClient, warmed: Path, tmp_path: Path) -> None:
    with shard(warmed, tmp_path / "a") as own, client_of(own) as of_shard:
        give(of_shard, ROWS[:5])
        fill(client, **NODES | {"a": Node(address_of(own), 10**6)})
        options, nodes, ranges = run("status").stdout.split("\n\n")
        assert options == "ranges\t4\nreplicas\t2\nsegment_bytes\t17179869184"
        assert [line.split("\t") for line in nodes.splitlines()] == [
            ["a", address_of(own), "", "serving", "2", "160", "1000000"],
            ["b", "127.0.0.1:10", "y", "serving", "2", "160", "1000000"],
        ]
        assert [line.split("\t") for line in ranges.splitlines()] == [
            ["items@1", "0-4", "80", "a, b (not whole)"],
            ["items@1", "5-9", "80", "a (not whole), b (not whole)"],
        ]
        assert json.loads(run("status", "--json").stdout)["tables"][0]["table"] == "items"


def test_a_shard_is_drained_once_others_have_its_ranges(client: CatalogueClient) -> None:
    fill(client, **NODES)
    assert "is a reconciler running?" in run("drain", "a", "--wait", "0.2", code=1).output
    assert client.refresh().drained == {"a"}
    client.transact(lambda _: Change({"tables/items": None}))
    assert run("drain", "a").stdout == "a has no ranges: it can be stopped\n"
    run("undrain", "a")
    assert client.refresh().drained == set()
    assert "'m9'" in run("drain", "m9", code=1).output


def test_a_lost_shard_is_forgotten_once_others_have_its_ranges(client: CatalogueClient) -> None:
    fill(client, **NODES)
    assert "'a' is running" in run("forget", "a", code=1).output
    client.transact(lambda _: Change({"alive/a": None, "alive/b": None}))
    assert "no running shard has rows 0 to 4 of 'items@1'" in run("forget", "a", code=1).output
    assert "\tlost\t" in run("status").output
    client.transact(lambda _: Change({"alive/b": Mark()}))
    run("forget", "a")
    assert set(client.refresh().nodes) == {"b"}
    assert "known shards: b" in run("forget", "a", code=1).output


def test_a_reconciler_is_in_office_until_it_is_stopped(client: CatalogueClient) -> None:
    fill(client)
    command = [GATHERND, "cluster", "reconcile", "--metrics", f"127.0.0.1:{free_port()}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        until(lambda: client.refresh().reconciler, "it is in office")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert client.refresh().reconciler is None
    assert "is not of the form HOST:PORT" in run("reconcile", "--metrics", "9100", code=1).output


class Launcher:
    """In the place of `ray_launcher`: two machines."""

    def __init__(self, client: CatalogueClient) -> None:
        self.client = client
        self.stopped = False

    def Launch(self, **given: Any) -> dict[str, Any]:  # noqa: N802
        return given

    def launch_all(self, launch: dict[str, Any]) -> None:
        self.launch = launch
        fill(self.client, **NODES)

    def alive_machines(self) -> list[int]:
        return [1, 2]

    def shard_problems(self) -> dict[str, str]:
        return {"c": "a shard with this name is already running at 10.0.0.1:1000"}

    def stop_launcher(self) -> None:
        self.stopped = True

    def stop_shards(self) -> int:
        assert self.stopped
        return 2


@pytest.fixture
def launcher(client: CatalogueClient, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    made = Launcher(client)
    monkeypatch.setattr(cluster_command, "_run_on_ray", lambda _, work: work(made))
    return made


def test_start_writes_options_and_launches_what_it_is_given(launcher: Launcher, database: RunningDatabase) -> None:
    flags = "--data-dir", "/data", "--shard-bytes", "9999999", "--flag=--threads=1"
    done = run("start", *flags, "--tls-cert", "/own.pem", "--cluster-ca", "/ca.pem", code=1)
    assert "/ca.pem cannot be read" in done.output
    assert run("start", *flags).stdout.splitlines()[-1] == "2 shards are serving"
    assert launcher.launch == {
        "cluster": database.cluster, "folder": "/data", "count": None, "max_bytes": 9999999,
        "flags": ("--threads=1",), "tls": None, "metrics": "",
    }  # fmt: skip
    assert launcher.client.refresh().options.key is not None
    late = run("start", "--shards", "3", "--wait", "0.2", code=1).output
    assert "not all 3 shards are serving" in late
    assert "c: a shard with this name is already running at 10.0.0.1:1000" in late
    assert "--tls-cert and --cluster-ca" in run("start", "--tls-key", "own.key", code=1).output


def test_stop_ends_all(launcher: Launcher) -> None:
    assert run("stop").stdout == "2 shards have stopped\n"


ON_RAY = """
import os, sys
from types import ModuleType
from app.cli import cluster_command
launcher = sys.modules["app.cluster.ray_launcher"] = ModuleType("launcher")
def connect(address):
    print("what Ray prints", flush=True)
    os.write(1, b"what Ray writes")
    if address == "gone":
        os._exit(0)
    if address == "nobody":
        raise OSError("no Ray cluster answers")
launcher.connect = connect
launcher.stop_launcher = lambda: None
launcher.stop_shards = lambda: 7
cluster_command.find_spec = lambda _: True
cluster_command.app()
"""


@pytest.mark.parametrize(
    ("address", "printed", "code", "said"),
    [("there", "7 shards have stopped\n", 0, ""), ("gone", "", 1, "Ray ended"), ("nobody", "", 1, "answers")],
)
def test_what_ray_prints_and_how_it_ends_is_kept_apart(address: str, printed: str, code: int, said: str) -> None:
    """Ray prints on standard output, and ends its process with any exit code."""
    command = [sys.executable, "-c", ON_RAY, "stop", "--ray", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=dict(os.environ))
    assert done.returncode == code, done.stderr
    assert done.stdout == printed
    assert said in done.stderr
    assert "what Ray prints" in done.stderr


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_it_says_what_to_install() -> None:
    assert "pip install ./clients/python '.[cluster]'" in run("stop", code=1).output
