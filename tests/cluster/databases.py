"""Databases for the tests: etcd where it is installed, and the stand-in, each a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from app.cluster.catalogue.etcd import Database, DatabaseAddress
from tests.cluster.waiting import until
from tests.free_port import free_port

KINDS = ("etcd", "stand_in")


def installed() -> str:
    """The kind for tests that need one database: etcd itself where it is installed."""
    return "etcd" if shutil.which("etcd") else "stand_in"


class RunningDatabase:
    """One member, which `stop` kills and `begin` starts again with the records that it had."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self.port = free_port()
        self._peer_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.begin()

    @property
    def cluster(self) -> str:
        """The value of GATHERND_CLUSTER."""
        return f"etcd://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, lease_seconds: int = 15) -> Database:
        return Database(DatabaseAddress.parse(self.cluster), lease_seconds=lease_seconds)

    def begin(self) -> None:
        """Start it unless it runs, and wait until it answers."""
        if self._process is not None:
            return
        peers = f"http://127.0.0.1:{self._peer_port}"
        command = (
            [
                "etcd", "--data-dir", str(self.folder / "etcd"), "--logger", "zap", "--log-level", "error",
                "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
                "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
                "--initial-cluster", f"default={peers}",
            ]
            if self.kind == "etcd"
            else [sys.executable, "-m", "tests.cluster.etcd_stand_in", str(self.port), str(self.folder / "records")]
        )  # fmt: skip
        self._process = subprocess.Popen(command)
        until(lambda: answers(self.port), "the database answers")

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def forget(self) -> None:
        """Remove all that it has kept, while it is stopped."""
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)
        (self.folder / "records").unlink(missing_ok=True)

    def compact(self) -> None:
        """Forget the history up to now."""
        found = httpx.post(f"{self.url}/v3/kv/range", json={"key": "YQ=="}).json()
        revision = found["header"]["revision"]
        httpx.post(f"{self.url}/v3/kv/compaction", json={"revision": revision}).raise_for_status()


def answers(port: int) -> bool:
    """Whether a database answers there."""
    url = f"http://127.0.0.1:{port}/v3/kv/range"
    try:
        return httpx.post(url, json={"key": "YQ=="}, trust_env=False).is_success
    except httpx.HTTPError:
        return False


class EtcdMembers:
    """Three members of one etcd, any of which may be killed and begun again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = [(free_port(), free_port()) for _ in range(3)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(3):
            self.begin(number)

    @property
    def cluster(self) -> str:
        """The value of GATHERND_CLUSTER."""
        return "etcd://" + ",".join(f"127.0.0.1:{port}" for port, _ in self._ports)

    def begin(self, number: int) -> None:
        """Start a member."""
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports[number])
        all_of_them = ",".join(f"m{each}=http://127.0.0.1:{port}" for each, (_, port) in enumerate(self._ports))
        self._processes[number] = subprocess.Popen(
            ["etcd", "--name", f"m{number}", "--data-dir", str(self._folder / f"etcd-{number}"),
             "--logger", "zap", "--log-level", "error",
             "--listen-client-urls", client, "--advertise-client-urls", client,
             "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", all_of_them]
        )  # fmt: skip

    def answers(self, number: int) -> bool:
        """Whether a member answers, and knows the others."""
        return answers(self._ports[number][0])

    def stop(self, number: int | None = None) -> None:
        """Kill a member, or all of them."""
        for each in list(self._processes) if number is None else [number]:
            process = self._processes.pop(each)
            process.kill()
            process.wait(60)


@contextmanager
def running_database(folder: Path, kind: str | None = None) -> Iterator[RunningDatabase]:
    """A database in `folder`, of a kind in KINDS; by default what is installed."""
    folder.mkdir(parents=True, exist_ok=True)
    database = RunningDatabase(kind or installed(), folder)
    try:
        yield database
    finally:
        database.stop()
