"""Primaries killed under lookups and scatters: does a lookup fail, and how long does a range refuse scatters?

A client of each range adds to its rows all the time, and sends again what is refused; eight connections look up 256
rows of another table, and compare each answer with it. Every few seconds the primary of a range, by turns, is killed
with SIGKILL, and started again after two seconds. Printed are the times from a kill to the next add that is
acknowledged, failures of lookups, and the times of all lookups and of those under way in the second after a kill.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from threading import Event, Thread

import numpy as np

from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.etcd import Database, DatabaseAddress
from app.cluster.catalogue.records import RangeRecord
from benchmarks import work
from benchmarks.cluster.lookups import body_of, header_of
from benchmarks.cluster.machines import RANGES, Cluster
from benchmarks.cluster.scatters import BODIES, RANGE_ROWS, bodies
from benchmarks.work import PICK, ROWS, SAFETENSORS, WIDTH

CONNECTIONS = 8
TABLE = "sums"
"""The table that is added to; lookups ask for `items`."""
PATH = f"/tensors/{TABLE}/scatter?reduction=add"
LATE_S = 0.5
"""An answer so long after a kill is not the dead primary's."""
DOWN_S = 2.0
Seen = tuple[float, float, bool]
"""When a lookup began, how long it took, and whether it was right."""


class Adder:
    """Adds to one range all the time; `acknowledged` has when requests began and ended that succeeded."""

    def __init__(self, port: int, low: int) -> None:
        self.acknowledged: list[tuple[float, float]] = []
        self._over = Event()
        self._port, self._bodies = port, bodies(low, low + RANGE_ROWS)
        self._thread = Thread(target=self._add, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop."""
        self._over.set()
        self._thread.join()

    def _add(self) -> None:
        number = 0
        connection = HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._over.wait(0.01):
            headers = {**SAFETENSORS, "idempotency-key": f"{id(self)}-{number}"}
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


async def load(port: int, bodies: list[bytes], answers: list[bytes], over: Event, seen: list[Seen]) -> None:
    """Ask on one connection until the end; when each request began, how long it took, and whether it was right."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = id(reader) % len(bodies)
    while not over.is_set():
        number = (number + 1) % len(bodies)
        begun = time.perf_counter()
        writer.write(header_of(bodies[number]) + bodies[number])
        head = await reader.readuntil(b"\r\n\r\n")
        at = head.index(b"content-length: ") + 16
        body = await reader.readexactly(int(head[at : head.index(b"\r", at)]))
        right = head.startswith(b"HTTP/1.1 200") and body[-len(answers[number]) :] == answers[number]
        seen.append((begun, time.perf_counter() - begun, right))
    writer.close()


class Lookups:
    """Lookups on all connections until the end."""

    def __init__(self, port: int, table: work.Array) -> None:
        rng = np.random.default_rng(1)
        rows = [rng.integers(0, ROWS, PICK) for _ in range(64)]
        self.seen: list[Seen] = []
        self._over = Event()
        asked, answers = [body_of(one) for one in rows], [table[one].tobytes() for one in rows]
        self._thread = Thread(target=lambda: asyncio.run(self._run(port, asked, answers)), daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Stop."""
        self._over.set()
        self._thread.join()

    async def _run(self, port: int, asked: list[bytes], answers: list[bytes]) -> None:
        await asyncio.gather(*(load(port, asked, answers, self._over, self.seen) for _ in range(CONNECTIONS)))


def later(adder: Adder, died: float) -> float | None:
    """When the first add was acknowledged that the dead primary has not answered."""
    return next((end for begun, end in adder.acknowledged if begun > died or end > died + LATE_S), None)


def kills(cluster: Cluster, count: int) -> list[float]:
    """Kill the primary of a range, by turns, and print how long it refused scatters; returns when it killed."""
    database = Database(DatabaseAddress.parse(cluster.address))
    client = CatalogueClient(database)
    refused: list[float] = []
    killed: list[float] = []

    def ranges() -> dict[int, RangeRecord]:
        """The records by first rows, of the current version."""
        version = client.refresh().tables[TABLE].versions[-1]
        return {one.start: client.catalogue.ranges[version.tensor(one)] for one in version.segments}

    adders = {start: Adder(cluster.router, start) for start in range(0, ROWS, RANGE_ROWS)}
    time.sleep(2)
    for kill in range(count):
        while any(len(record.in_sync) < 2 for record in ranges().values()):
            time.sleep(0.1)
        before = ranges()
        victim = before[kill % RANGES * RANGE_ROWS].primary
        cluster.shards[victim].kill()
        died = time.perf_counter()
        killed.append(died)
        led = [start for start, record in before.items() if record.primary == victim]
        while (found := [later(adders[start], died) for start in led]) and None in found:
            time.sleep(0.05)
        refused += [end - died for end in found if end is not None]
        time.sleep(DOWN_S)
        cluster.shards[victim].start()
        time.sleep(DOWN_S)
    for adder in adders.values():
        adder.end()
    database.close()
    p50, p99 = np.quantile(refused, (0.5, 0.99))
    print(
        f"\n{count} shards were killed, which were primaries of {len(refused)} ranges: these took scatters again after "
        f"{p50:.2f} s (p50), {p99:.2f} s (p99), {max(refused):.2f} s (most)"
    )
    return killed


def show_lookups(seen: list[Seen], killed: list[float]) -> None:
    """Print failures and times."""
    behind = [took for begun, took, _ in seen if any(begun < at + 1 and begun + took > at for at in killed)]
    print(f"{len(seen):,} lookups, {sum(not right for *_, right in seen)} failed or wrong")
    print(f"{'':30}{'p50 ms':>10}{'p99 ms':>10}{'most ms':>10}")
    for name, times in (("all", [took for _, took, _ in seen]), ("in the second after a kill", behind)):
        p50, p99 = np.quantile(times, (0.5, 0.99)) * 1e3
        print(f"{name:30}{p50:10.2f}{p99:10.2f}{max(times) * 1e3:10.2f}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--folder", help="where the stores lie")


def run(given: argparse.Namespace) -> None:
    """Kill, and print what came of it."""
    table = work.table()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=given.folder)))
        cluster = Cluster(stack, folder, replicas=given.replicas)
        work.upload(cluster.router, table)
        work.upload(cluster.router, np.zeros((ROWS, WIDTH), np.float32), TABLE)
        lookups = Lookups(cluster.router, table)
        try:
            killed = kills(cluster, given.kills)
        finally:
            lookups.end()
        show_lookups(lookups.seen, killed)
