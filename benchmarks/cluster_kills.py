"""Shards killed under a load of lookups: does a request fail, and how long do requests take then?

python -m benchmarks.cluster_kills [--kills 10]

Three shards have four ranges with two replicas each, and eight connections ask a router for 256 rows all the time.
Every few seconds one shard, by turns, is killed with SIGKILL, and started again after a second and a half. Every answer
is compared with the table. What is printed: requests, failures, and quantiles of their times, of all requests and of
those that were under way in the second behind a kill.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import common
from benchmarks.cluster import ASKED, ROWS, WIDTH, body_of, header_of, put

SHARDS, RANGES, CONNECTIONS = 3, 4, 8
DOWN_S, UP_S = 1.5, 1.5


class Service:
    """A service on a port of its own, with a store that stays when it is killed."""

    def __init__(self, folder: Path, name: str, *flags: str) -> None:
        self.port = common.free_port()
        self._log = folder / f"{name}.log"
        self._environ = {
            **os.environ,
            "GATHERND_STORE_DIR": str(folder / name),
            "GATHERND_CACHE_DIR": str(folder / "cache"),
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


async def load(
    port: int, bodies: list[bytes], answers: list[bytes], until: asyncio.Event, seen: list[tuple[float, float, bool]]
) -> None:
    """Ask on one connection until the end; when each request began, how long it took, and whether it was right."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = id(reader) % len(bodies)
    while not until.is_set():
        number = (number + 1) % len(bodies)
        begun = time.perf_counter()
        writer.write(header_of(bodies[number]) + bodies[number])
        head = await reader.readuntil(b"\r\n\r\n")
        at = head.index(b"content-length: ") + 16
        body = await reader.readexactly(int(head[at : head.index(b"\r", at)]))
        right = head.startswith(b"HTTP/1.1 200") and body[-len(answers[number]) :] == answers[number]
        seen.append((begun, time.perf_counter() - begun, right))
    writer.close()


async def run(router: int, shards: list[Service], kills: int, bodies: list[bytes], answers: list[bytes]) -> None:
    """Kill shards under load, and print what came of it."""
    until = asyncio.Event()
    seen: list[tuple[float, float, bool]] = []
    killed: list[float] = []
    tasks = [asyncio.create_task(load(router, bodies, answers, until, seen)) for _ in range(CONNECTIONS)]
    await asyncio.sleep(UP_S)
    for number in range(kills):
        shard = shards[number % len(shards)]
        killed.append(time.perf_counter())
        await asyncio.to_thread(shard.kill)
        await asyncio.sleep(DOWN_S)
        await asyncio.to_thread(shard.start)
        await asyncio.sleep(UP_S)
    until.set()
    await asyncio.gather(*tasks)
    behind = [took for begun, took, _ in seen if any(begun < at + 1 and begun + took > at for at in killed)]
    print(f"{len(seen):,} requests, {sum(not right for *_, right in seen)} failed or wrong, {kills} kills")
    print(f"{'':30}{'p50 ms':>10}{'p99 ms':>10}{'most ms':>10}")
    for name, times in (("all", [took for _, took, _ in seen]), ("in the second behind a kill", behind)):
        p50, p99 = np.quantile(times, (0.5, 0.99)) * 1e3
        print(f"{name:30}{p50:10.2f}{p99:10.2f}{max(times) * 1e3:10.2f}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    given = parser.parse_args()
    print(common.machine_line())
    table = np.random.default_rng(0).standard_normal((ROWS, WIDTH), np.float32)
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, ROWS, ASKED) for _ in range(64)]
    bodies, answers = [body_of(one) for one in rows], [table[one].tobytes() for one in rows]
    services: list[Service] = []
    with tempfile.TemporaryDirectory(prefix="gathernd-bench-") as folder:
        try:
            shards = [Service(Path(folder), f"shard{number}") for number in range(SHARDS)]
            services += shards
            ranges = []
            for number in range(RANGES):
                start, stop = ROWS * number // RANGES, ROWS * (number + 1) // RANGES
                replicas = [shards[(number + copy) % SHARDS] for copy in range(2)]
                for shard in replicas:
                    put(shard.port, f"r{start}", table[start:stop])
                places = [{"address": f"127.0.0.1:{shard.port}"} for shard in replicas]
                ranges.append({"start": start, "stop": stop, "tensor": f"r{start}@1", "replicas": places})
            version = {"number": 1, "content_id": "b", "dtype": "float32", "shape": [ROWS, WIDTH], "ranges": ranges}
            path = Path(folder) / "map.json"
            path.write_text(json.dumps({"tables": {"items": {"versions": [version]}}}))
            router = Service(Path(folder), "router", "--cluster", str(path))
            services.append(router)
            asyncio.run(run(router.port, shards, given.kills, bodies, answers))
        finally:
            for service in services:
                if service.process.poll() is None:
                    service.process.terminate()
                    service.process.wait(20)


if __name__ == "__main__":
    main()
