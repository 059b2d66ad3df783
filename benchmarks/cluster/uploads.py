"""How fast a table comes to a cluster: an upload, an import by ranges, and the move of a segment under lookups.

A table has 4 ranges with 2 replicas each. Beside the seconds of each round stand the processor seconds of the router
and of all shards. The disk is measured by itself (`dd` with fsync), since the stores of all shards lie on it.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from threading import Event, Thread

import numpy as np

from app.cluster.catalogue import transitions
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.etcd import Database, DatabaseAddress
from benchmarks.cluster.lookups import body_of, look_up
from benchmarks.cluster.machines import Cluster
from benchmarks.store.imports import range_server
from benchmarks.work import WIDTH

DRAINED = "s0"
PIECE = 1 << 20


def ask(port: int, method: str, path: str, body: bytes | None = None, **fields: str) -> dict[str, object]:
    """The JSON of an answer. Raises RuntimeError for a refusal."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request(method, path, body, fields)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status >= 300:
        raise RuntimeError(text)
    found: dict[str, object] = json.loads(text) if text else {}
    return found


def upload(port: int, rows: int, piece: bytes, name: str) -> None:
    """Put a table of float32 whose bytes are `piece` again and again."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    size = rows * WIDTH * 4
    connection.putrequest("PUT", f"/tensors/{name}?dtype=float32&shape={rows},{WIDTH}&keep=1")
    connection.putheader("Content-Type", "application/octet-stream")
    connection.putheader("Content-Length", str(size))
    connection.endheaders()
    for _ in range(size // len(piece)):
        connection.send(piece)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    if answer.status not in (200, 201):
        raise RuntimeError(text)


def bring(port: int, url: str, name: str) -> None:
    """Import a file, and wait for its end."""
    asked = json.dumps({"url": url}).encode()
    job = ask(port, "POST", f"/tensors/{name}/import", asked, **{"Content-Type": "application/json"})
    while (found := ask(port, "GET", f"/imports/{job['id']}"))["state"] == "running":
        time.sleep(0.02)
    if found["state"] != "done":
        raise RuntimeError(found)


def disk(folder: Path, mib: int) -> float:
    """GiB/s of one process that writes a file and makes it durable."""
    target = folder / "dd"
    begun = time.perf_counter()
    command = ["dd", "if=/dev/zero", f"of={target}", "bs=1M", f"count={mib}", "conv=fsync"]
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.perf_counter() - begun
    target.unlink()
    return mib / 1024 / seconds


def timed(cluster: Cluster, what: str, gib: float, work: Callable[[], object], rounds: int) -> None:
    """Print what `work` takes."""
    figures = []
    for _ in range(rounds):
        router, shards = cluster.spent()
        begun = time.perf_counter()
        work()
        seconds = time.perf_counter() - begun
        after = cluster.spent()
        figures.append((seconds, after[0] - router, after[1] - shards))
        time.sleep(8)  # until the reconciler has dropped the version before
    seconds, router, shards = map(median, zip(*figures, strict=True))
    each = " ".join(f"{one[0]:.2f}" for one in figures)
    print(f"{what:28}{seconds:8.2f}{gib / seconds:8.2f}{router:10.2f}{shards:10.2f}   {each}", flush=True)


async def lookups(port: int, rows: int, over: Event, times: list[float]) -> None:
    """Look up 256 rows at a time on one connection until `over`; the milliseconds of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    rng = np.random.default_rng(0)
    bodies = [body_of(rng.integers(0, rows, 256)) for _ in range(64)]
    while not over.is_set():
        times.append(await look_up(reader, writer, bodies[len(times) % len(bodies)]))
        await asyncio.sleep(0.002)
    writer.close()


def p99(times: list[float]) -> float:
    """The quantile."""
    return quantiles(times, n=100)[98]


def move(cluster: Cluster, rows: int) -> None:
    """Drain one shard under lookups: print how fast its segments go elsewhere, and p99 before and meanwhile."""
    database = Database(DatabaseAddress.parse(cluster.address))
    client = CatalogueClient(database)

    def held() -> int:
        """Bytes that the catalogue lists on the shard."""
        versions = [version for table in client.refresh().tables.values() for version in table.versions]
        return sum(one.size for version in versions for one in version.segments if DRAINED in one.nodes)

    over, times = Event(), list[float]()
    asking = Thread(target=lambda: asyncio.run(lookups(cluster.router, rows, over, times)))
    asking.start()
    time.sleep(5)
    size, quiet, begun = held(), len(times), time.perf_counter()
    client.transact(lambda catalogue: transitions.drain(catalogue, DRAINED))
    while held():
        time.sleep(0.02)
    seconds, busy = time.perf_counter() - begun, times[quiet:]
    over.set()
    asking.join()
    database.close()
    print(
        f"{size / 2**30:.2f} GiB of a drained shard are elsewhere after {seconds:.2f} s ({size / 2**30 / seconds:.2f} "
        f"GiB/s); p99 of lookups: {p99(times[:quiet]):.2f} ms before, {p99(busy):.2f} ms meanwhile"
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where the stores lie")
    parser.add_argument("--parts", default="upload,import,move")


def run(given: argparse.Namespace) -> None:
    """Print the table."""
    rows, gib = given.mib * (PIECE // (4 * WIDTH)), given.mib / 1024
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=given.folder)))
        print(f"the disk takes {disk(folder, given.mib):.2f} GiB/s")
        piece = os.urandom(PIECE)
        flags: tuple[str, ...] = ()
        if "import" in given.parts:
            file = folder / "table.npy"
            with file.open("wb") as target:
                header = {"descr": "<f4", "fortran_order": False, "shape": (rows, WIDTH)}
                np.lib.format.write_array_header_1_0(target, header)
                for _ in range(given.mib):
                    target.write(piece)
            url = stack.enter_context(range_server(file))
            flags = ("--import-from", url.rpartition("/")[0] + "/")
        cluster = Cluster(stack, folder, *flags)
        print(f"{'':28}{'s':>8}{'GiB/s':>8}{'router s':>10}{'shards s':>10}")
        if "upload" in given.parts:
            timed(cluster, "upload", gib, lambda: upload(cluster.router, rows, piece, "items"), given.rounds)
        if "import" in given.parts:
            timed(cluster, "import", gib, lambda: bring(cluster.router, url, "items"), given.rounds)
        if "move" in given.parts:
            upload(cluster.router, rows, piece, "items")
            time.sleep(8)
            move(cluster, rows)
