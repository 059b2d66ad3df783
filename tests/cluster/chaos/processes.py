"""The processes of a cluster, each on a host of its own: three members of etcd, shards, routers and reconcilers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.etcd import Database, DatabaseAddress
from app.cluster.catalogue.records import Change, Options
from app.cluster.shard.shard_folder import ShardFolder
from tests.cluster.chaos.network import Network, log_of
from tests.cluster.databases import answers_at
from tests.cluster.waiting import until

KEY = "gathernd_key_of_the_cluster"
RANGES, REPLICAS = 4, 3
MEMBERS = ("e0", "e1", "e2")
SHARDS = ("s0", "s1", "s2", "s3")
ROUTERS = ("r0", "r1")
RECONCILERS = ("c0", "c1")
PORT = 7000
GATHERND = str(Path(sys.executable).with_name("gathernd"))


@dataclass
class Process:
    """A process that may be killed and begun again; `is_answering` says whether it serves."""

    begin: Callable[[], subprocess.Popen[bytes]]
    is_answering: Callable[[], bool]
    running: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin it unless it runs."""
        if self.running is None:
            self.running = self.begin()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it runs; SIGKILL ends it."""
        if self.running is None:
            return
        self.running.send_signal(number)
        if number == signal.SIGKILL:
            self.running.wait()
            self.running = None

    def end(self) -> None:
        """End it politely; with 0 if it is a service."""
        if self.running is not None:
            self.running.send_signal(signal.SIGCONT)
            self.running.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.running.wait(30)
            self.running.kill()
            self.running.wait()
            self.running = None


class Cluster:
    """All processes by name, and the tests' own view of the catalogue. `headers` open the routers."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder = folder
        self.network = Network()
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GATHERND_")}
        self._variables = {**kept, "GATHERND_CACHE_DIR": str(cache), "GATHERND_THREADS": "1"}
        self._keys = folder / "keys"
        self.headers = {"authorization": f"Bearer {self._made_key()}"}
        self.address = "etcd://" + ",".join(f"{self.network.address(name)}:2379" for name in MEMBERS)
        self.processes = {name: Process(self._begins(name), self._answers(name)) for name in self._names()}
        self.start(*MEMBERS)
        self.catalogue = CatalogueClient(Database(DatabaseAddress.parse(self.address)))
        options = Options(ranges=RANGES, replicas=REPLICAS, key=KEY)
        self.catalogue.transact(lambda _: Change({"options": options}))
        self.start(*SHARDS, *RECONCILERS)
        self.start(*ROUTERS)
        until(lambda: set(self.catalogue.refresh().alive) == set(SHARDS), "the shards are registered")

    def _made_key(self) -> str:
        """Make a key for those who ask the routers."""
        scopes = ["--scope", "gather", "--scope", "tensors"]
        command = [GATHERND, "keys", "add", "chaos", *scopes, "--file", str(self._keys)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return str(done.stdout).strip()

    @staticmethod
    def _names() -> tuple[str, ...]:
        return (*MEMBERS, *SHARDS, *ROUTERS, *RECONCILERS)

    def url(self, name: str) -> str:
        """Where a shard or a router answers."""
        return f"http://{self.network.address(name)}:{PORT}"

    def start(self, *names: str) -> None:
        """Begin these processes, and wait until they answer."""
        for name in names:
            self.processes[name].start()
        for name in names:
            until(self.processes[name].is_answering, f"{name} answers")

    def end(self) -> None:
        """End all of them."""
        self.catalogue.database.close()
        for name in reversed(self._names()):
            self.processes[name].end()

    def _begins(self, name: str) -> Callable[[], subprocess.Popen[bytes]]:
        def begin() -> subprocess.Popen[bytes]:
            if name in SHARDS:
                ShardFolder(self.folder / name).store_options(Options(key=KEY))
            with log_of(self.folder, name).open("ab") as log:
                return self.network.begin(name, self._command(name), log, self._variables)

        return begin

    def _command(self, name: str) -> list[str]:
        if name in MEMBERS:
            return self._member(name)
        if name in RECONCILERS:
            return [GATHERND, "cluster", "reconcile", "--cluster", self.address]
        own = (
            ["--shard", "--node", name] if name in SHARDS else ["--deadline", "60", "--api-keys-file", str(self._keys)]
        )
        place = ["--host", self.network.address(name), "--port", str(PORT), "--store-dir", str(self.folder / name)]
        return [GATHERND, "serve", *place, "--kernel", "numpy", "--cluster", self.address, *own]

    def _member(self, name: str) -> list[str]:
        client, peer = (f"http://{self.network.address(name)}:{port}" for port in (2379, 2380))
        everyone = ",".join(f"{one}=http://{self.network.address(one)}:2380" for one in MEMBERS)
        return [
            "etcd", "--name", name, "--data-dir", str(self.folder / name), "--log-level", "error", "--logger", "zap",
            "--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", everyone,
        ]  # fmt: skip

    def _answers(self, name: str) -> Callable[[], bool]:
        if name in MEMBERS:
            return lambda: answers_at(f"http://{self.network.address(name)}:2379")
        if name in RECONCILERS:
            return lambda: True

        def is_ready() -> bool:
            try:
                return httpx.get(f"{self.url(name)}/readyz", trust_env=False, timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        return is_ready
