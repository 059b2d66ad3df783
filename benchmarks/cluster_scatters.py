"""Scatters to a cluster beside one machine: their rate, and how long a range refuses them when its primary dies.

python -m benchmarks.cluster_scatters [--seconds 5] [--kills 10] [--replicas 3] [--parts rate,kills] [--folder FOLDER]

etcd, four shards, a reconciler and a router run on this machine; a table of 200,000 rows of 64 float32 has 4 ranges.
A scatter adds 1 to 16 rows, with a key, in the binary format: one at a time and 16 at a time, to rows of one range and
to rows of all. The stores share one disk, so here a scatter costs as many flushes as it has replicas.
For the kills a client of each range adds all the time, and sends again what is refused. What counts is the time from
SIGKILL of the primary to the next add that is acknowledged. Stop what else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import quantiles
from threading import Event, Thread

import numpy as np
from safetensors.numpy import save

from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.etcd import Database, DatabaseAddress
from app.cluster.catalogue.records import RangeRecord
from benchmarks import common
from benchmarks.cluster import BINARY, ROWS, WIDTH, put
from benchmarks.cluster_kills import Service
from benchmarks.cluster_uploads import RANGES, Cluster

CHANGED, BODIES = 16, 64
AT_A_TIME = (1, 16)
PATH = "/tensors/items/scatter?reduction=add"
LATE_S = 0.5
"""An answer so long after a kill is not the dead primary's."""
DOWN_S = 2.0
RANGE_ROWS = ROWS // RANGES


class KillableShards(Cluster):
    """A cluster whose shards may be killed and started again."""

    def begin(self, name: str) -> int:
        """Start a shard; its port."""
        own = "--cluster", self.address, "--shard", "--node", name
        service = Service(self.folder, name, *own, *self.flags)
        self.services: dict[str, Service] = {**getattr(self, "services", {}), name: service}

        def end() -> None:
            service.process.terminate()
            service.process.wait(30)

        self.stack.callback(end)
        return service.port

    def spent(self) -> tuple[float, float]:
        """The processor seconds of the router and of the shards up to now."""
        shards = (service.port for service in self.services.values())
        return common.processor_time(self.router), sum(map(common.processor_time, shards))


def bodies(low: int, high: int) -> list[bytes]:
    """Requests that add 1 to rows in [low, high)."""
    rng = np.random.default_rng(0)
    updates = np.ones((CHANGED, WIDTH), np.float32)
    return [save({"indices": rng.integers(low, high, (CHANGED, 1)), "updates": updates}) for _ in range(BODIES)]


async def scatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
    """Send a scatter with a new key on an open connection, and read its answer."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: {BINARY}\r\n"
        f"idempotency-key: {secrets.token_hex(12)}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    at = answer.index(b"content-length: ") + 16
    content = await reader.readexactly(int(answer[at : answer.index(b"\r", at)]))
    assert answer.startswith(b"HTTP/1.1 200"), content


def times_of(port: int, asked: Sequence[bytes], width: int, seconds: float) -> list[float]:
    """The milliseconds of the scatters that are made in so many seconds, so many at a time."""
    times: list[float] = []

    async def ask(number: int, until: float) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (begun := time.perf_counter()) < until:
            await scatter(reader, writer, asked[(number + len(times)) % len(asked)])
            times.append((time.perf_counter() - begun) * 1e3)
        writer.close()

    async def run() -> None:
        until = time.perf_counter() + seconds
        await asyncio.gather(*(ask(number, until) for number in range(width)))

    asyncio.run(run())
    return times


def rates(cluster: KillableShards, whole: int, seconds: float) -> None:
    """Print scatters a second, their times, and processor time."""
    print(f"\nScatters of {CHANGED} rows:")
    print(f"{'':32}{'at a time':>10}{'scatters/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'service µs':>12}{'shards µs':>12}")
    for name, port, high in (
        ("one machine", whole, ROWS),
        ("cluster, rows of one range", cluster.router, RANGE_ROWS),
        (f"cluster, rows of {RANGES} ranges", cluster.router, ROWS),
    ):
        asked = bodies(0, high)
        times_of(port, asked, max(AT_A_TIME), 1.0)
        for width in AT_A_TIME:
            before = (common.processor_time(whole), *cluster.spent())
            times = times_of(port, asked, width, seconds)
            after = (common.processor_time(whole), *cluster.spent())
            spent = [(late - early) / len(times) * 1e6 for early, late in zip(before, after, strict=True)]
            own, shards = (spent[0], "") if port == whole else (spent[1], f"{spent[2]:12.0f}")
            cut = quantiles(times, n=100)
            rate = len(times) / seconds
            print(f"{name:32}{width:10}{rate:12,.0f}{cut[49]:10.2f}{cut[98]:10.2f}{own:12.0f}{shards}", flush=True)


class Adder:
    """Adds to one range all the time; `acknowledged` has when requests began and ended that succeeded."""

    def __init__(self, port: int, low: int) -> None:
        self.acknowledged: list[tuple[float, float]] = []
        self._over = Event()
        self._port, self._bodies = port, bodies(low, low + RANGE_ROWS)
        self._thread = Thread(target=self._add)
        self._thread.start()

    def end(self) -> None:
        """Stop."""
        self._over.set()
        self._thread.join()

    def _add(self) -> None:
        number = 0
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._over.wait(0.01):
            headers = {"content-type": BINARY, "idempotency-key": f"{id(self)}-{number}"}
            begun = time.perf_counter()
            try:
                connection.request("POST", PATH, self._bodies[number % BODIES], headers)
                answer = connection.getresponse()
                answer.read()
            except (OSError, HTTPException):
                connection.close()
                continue
            if answer.status == 200:
                self.acknowledged.append((begun, time.perf_counter()))
                number += 1
        connection.close()


def kills(cluster: KillableShards, count: int) -> None:
    """Kill the primary of a range, by turns, and print how long it refused scatters."""
    database = Database(DatabaseAddress.parse(cluster.address))
    client = CatalogueClient(database)
    refused: list[float] = []

    def ranges() -> dict[int, RangeRecord]:
        """The records by first rows, of the current version."""
        version = client.refresh().tables["items"].versions[-1]
        return {one.start: client.catalogue.ranges[version.tensor(one)] for one in version.segments}

    adders = {start: Adder(cluster.router, start) for start in range(0, ROWS, RANGE_ROWS)}
    time.sleep(2)
    for kill in range(count):
        while any(len(record.in_sync) < 2 for record in ranges().values()):
            time.sleep(0.1)
        before = ranges()
        victim = before[kill % RANGES * RANGE_ROWS].primary
        cluster.services[victim].kill()
        died = time.perf_counter()
        led = [start for start, record in before.items() if record.primary == victim]
        while (found := [later(adders[start], died) for start in led]) and None in found:
            time.sleep(0.05)
        refused += [end - died for end in found if end is not None]
        time.sleep(DOWN_S)
        cluster.services[victim].start()
        time.sleep(DOWN_S)
    for adder in adders.values():
        adder.end()
    database.close()
    p50, p99 = np.quantile(refused, (0.5, 0.99))
    print(
        f"\n{count} shards were killed, which were primaries of {len(refused)} ranges: these took scatters again after "
        f"{p50:.2f} s (p50), {p99:.2f} s (p99), {max(refused):.2f} s (most)"
    )


def later(adder: Adder, died: float) -> float | None:
    """When the first add was acknowledged that the dead primary has not answered."""
    return next((end for begun, end in adder.acknowledged if begun > died or end > died + LATE_S), None)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5, help="of each line")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--parts", default="rate,kills")
    parser.add_argument("--folder", help="where the stores lie")
    given = parser.parse_args()
    print(common.machine_line())
    table = np.zeros((ROWS, WIDTH), np.float32)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=given.folder)))
        environ = {"GATHERND_CACHE_DIR": str(folder / "cache"), "GATHERND_THREADS": "1"}
        whole = stack.enter_context(common.serving(common.gathernd_command, environ=environ, limit=200))
        cluster = KillableShards(stack, folder, replicas=given.replicas)
        for port in (whole, cluster.router):
            put(port, "items", table)
        if "rate" in given.parts:
            rates(cluster, whole, given.seconds)
        if "kills" in given.parts:
            kills(cluster, given.kills)


if __name__ == "__main__":
    main()
