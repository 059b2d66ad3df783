"""A cluster on this machine: etcd, four shards, a reconciler and a router, each a process that may be killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import common

RANGES, SHARDS = 4, 4


@contextmanager
def etcd(folder: Path) -> Iterator[str]:
    """One member of etcd; yields the value of GATHERND_CLUSTER."""
    if shutil.which("etcd") is None:
        raise SystemExit("etcd is needed: the Debian package etcd-server")
    client, peer = (f"http://127.0.0.1:{common.free_port()}" for _ in range(2))
    command = [
        "etcd", "--data-dir", str(folder), "--log-level", "error", "--listen-client-urls", client,
        "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
        "--initial-cluster", f"default={peer}", "--logger", "zap",
    ]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        yield client.replace("http", "etcd", 1)
    finally:
        process.terminate()
        process.wait()


class Service:
    """A service on a port of its own, with a store that stays when it is killed."""

    def __init__(self, folder: Path, name: str, *flags: str) -> None:
        self.port = common.free_port()
        self._log = folder / f"{name}.log"
        self._environ = {
            **os.environ,
            "GATHERND_STORE_DIR": str(folder / name),
            "GATHERND_CACHE_DIR": common.warm_cache(),
            "GATHERND_THREADS": "1",
        }
        executable, verb, *rest = common.gathernd_command(self.port)
        self._command = [executable, verb, *flags, *rest]
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, env=self._environ, stdout=log, stderr=log)
        while common.get_status(self.port, "/readyz") != 200:
            if self.process.poll() is not None:
                raise RuntimeError(self._log.read_text()[-2000:])
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Stop it, if it runs."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(30)


class Cluster:
    """A running cluster of this checkout; `flags` are those of shards and router."""

    def __init__(self, stack: ExitStack, folder: Path, *flags: str, replicas: int = 2) -> None:
        self.address = stack.enter_context(etcd(folder / "etcd"))
        init = self._command("init", "--ranges", str(RANGES), "--replicas", str(replicas))
        while subprocess.run(init, capture_output=True, check=False).returncode:
            time.sleep(0.1)  # until etcd answers
        self.shards: dict[str, Service] = {}
        for number in range(SHARDS):
            name = f"s{number}"
            self.shards[name] = Service(folder, name, "--cluster", self.address, "--shard", "--node", name, *flags)
            stack.callback(self.shards[name].end)
        reconciler = subprocess.Popen(self._command("reconcile"), stderr=subprocess.DEVNULL)
        stack.callback(reconciler.wait)
        stack.callback(reconciler.terminate)
        router = Service(folder, "router", "--cluster", self.address, *flags)
        stack.callback(router.end)
        self.router = router.port

    def _command(self, verb: str, *arguments: str) -> list[str]:
        gathernd = str(Path(sys.executable).with_name("gathernd"))
        return [gathernd, "cluster", verb, *arguments, "--cluster", self.address]

    def spent(self) -> tuple[float, float]:
        """The processor seconds of the router and of the shards up to now."""
        shards = (common.processor_time(service.port) for service in self.shards.values())
        return common.processor_time(self.router), sum(shards)
