"""Imports of a file by ranges beside httpx alone, and from a server that cuts connections every 100 MB.

"httpx alone" reads the same ranges, four at once, and writes them to a file that is made durable. Turns alternate;
medians. Memory is the most by which the service's anonymous memory grows while it imports (RssAnon), with the first
import and its libraries.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import httpx
import numpy as np

from benchmarks.common import ROOT, gathernd_command, processes, serving

PIECE = 4 << 20
AT_ONCE = 4
_SERVER = """
import sys
from pathlib import Path
from tests.imports.range_server import range_server
import mmap, time
with range_server() as server, open(sys.argv[1], "rb") as file:
    server.files = {"/t/table.npy": memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))}
    server.cut_every = int(sys.argv[2]) or None
    print(server.port, flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def range_server(path: Path, cut_every: int = 0) -> Iterator[str]:
    """The URL of the file at a server that cuts a connection after so many bytes, 0 for never."""
    command = [sys.executable, "-c", _SERVER, str(path), str(cut_every)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/t/table.npy"
        finally:
            process.stdin.close()
            process.wait()


async def library_alone(url: str, size: int, target: Path) -> None:
    """Read the ranges with httpx, and write them durably."""
    with target.open("wb") as file:
        file.truncate(size)

        async def read(client: httpx.AsyncClient, begin: int) -> None:
            end = min(begin + PIECE, size)
            async with client.stream("GET", url, headers={"range": f"bytes={begin}-{end - 1}"}) as answer:
                async for piece in answer.aiter_raw():
                    begin += os.pwrite(file.fileno(), piece, begin)

        free = asyncio.Semaphore(AT_ONCE)

        async def one(client: httpx.AsyncClient, begin: int) -> None:
            async with free:
                await read(client, begin)

        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            await asyncio.gather(*(one(client, begin) for begin in range(0, size, PIECE)))
        os.fsync(file.fileno())


class Growth(Thread):
    """By how much a process' anonymous memory grows at most."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self._status = Path(f"/proc/{process}/status")
        self._stop_event = Event()
        self.before = self.most = self._now()

    def _now(self) -> int:
        found = re.search(r"RssAnon:\s+(\d+) kB", self._status.read_text())
        assert found is not None
        return int(found[1]) << 10

    def run(self) -> None:
        while not self._stop_event.wait(0.02):
            self.most = max(self.most, self._now())

    def end(self) -> int:
        self._stop_event.set()
        self.join()
        return self.most - self.before


def imported(client: httpx.Client, url: str) -> float:
    """Seconds that an import takes, by its own times."""
    begun = time.perf_counter()
    answer = client.post("/tensors/table/import", json={"url": url})
    assert answer.status_code == 202, answer.text
    while (found := client.get(answer.headers["location"]).json())["state"] == "running":
        time.sleep(0.02)
    assert found["state"] == "done", found
    return time.perf_counter() - begun


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as room:
        path, target = Path(room) / "table.npy", Path(room) / "copy"
        table = np.lib.format.open_memmap(path, "w+", np.uint8, (options.mib, 1 << 20))
        for row in table:
            row[:] = np.random.default_rng(0).integers(0, 255, 1 << 20, np.uint8)
        table.flush()
        size = path.stat().st_size
        with contextlib.ExitStack() as stack:
            plain = stack.enter_context(range_server(path))
            cut = stack.enter_context(range_server(path, 100_000_000))
            allowed = ",".join(url.rpartition("/")[0] + "/" for url in (plain, cut))
            flags = ["--import-from", allowed, "--kernel", "numpy"]

            def command(port: int) -> list[str]:
                executable, verb, *rest = gathernd_command(port)
                return [executable, verb, *flags, *rest]

            port = stack.enter_context(serving(command))
            client = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60))
            growth = Growth(processes(port)[0])  # the first import also loads httpx
            growth.start()
            imported(client, plain)
            alone, whole, resumed = [], [], []
            for _ in range(options.rounds):
                begun = time.perf_counter()
                asyncio.run(library_alone(plain, size, target))
                alone.append(time.perf_counter() - begun)
                whole.append(imported(client, plain))
                resumed.append(imported(client, cut))
            grown = growth.end()
    base = statistics.median(alone)
    print(f"{options.mib} MiB, medians of {options.rounds}")
    for name, seconds in (("httpx alone", alone), ("import", whole), ("import, cut every 100 MB", resumed)):
        found = statistics.median(seconds)
        print(f"{name:26} {found:6.2f} s  {size / found / 1e6:6.0f} MB/s  {found / base:5.2f} times")
    print(f"the service's memory grew by {grown / 2**20:.1f} MiB at most")
