"""What the service does when four times as much is asked of it as it can do.

python -m benchmarks.overload [--seconds 8] [--rounds 1] [--times 4] [--work inflate,text,inline] [--budget 512MiB]
                               [--together]

First the capacity: a few connections that each ask again once they have their answer. Then requests at `--times` that
rate, whether or not the ones before were answered, from a process of its own, whose clock for a request starts when it
was due. Then the capacity again: the mean of the two counts as the peak. The goal: of what could be answered at best,
nine tenths are; a refusal comes within 50 ms for 99 of 100; the memory stays within the budget.

Service and generator have processors of their own, one of two each, or the generator, which has more to do when it asks
for more, would take from the service what it needs. `--together` lets them share all. The column `per CPU` compares the
answers for each second of the processors that the service had.

`--seconds` bounds each part, and `CONNECTIONS` how many requests are under way: what would exceed it is not sent, and
counted apart. With 4 MB in a request the generator is the first to be at its limit on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import multiprocessing
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np
import uvloop
from safetensors.numpy import save

from benchmarks import common
from gathernd import Client

MIB: Final = 1 << 20
PEAK_CONNECTIONS: Final = 8
SAFETENSORS: Final = {"Content-Type": "application/x-safetensors"}
ROWS: Final = 4096
CONSTANT: Final = 32 * MIB
"""What the service may hold beside its budget: that of its small requests is counted apart."""


def inflate() -> common.Request:
    """1,000,000 indices that came compressed, the answer compressed: little to send, much to do."""
    indices = (np.arange(MIB, dtype=np.int64) % 251)[:, None]
    about = {"name": "indices", "datatype": "INT64", "shape": [MIB, 1], "parameters": {"binary_data_size": 8 * MIB}}
    text = json.dumps({"inputs": [about], "parameters": {"binary_data_output": True}}).encode()
    return common.Request(
        "/v2/models/flat/infer",
        gzip.compress(text + indices.tobytes(), 6),
        {
            "Content-Type": "application/octet-stream",
            "Content-Encoding": "gzip",
            "Accept-Encoding": "gzip",
            "Inference-Header-Content-Length": str(len(text)),
        },
    )


def text() -> common.Request:
    """1,000,000 float32 in JSON that came compressed, 10 of them out."""
    values = ",".join(["0.6394268", "12.25", "-3e-7", "1000000.5"] * 250_000)
    body = (
        f'{{"data":{{"dtype":"float32","shape":[1000000],"values":[{values}]}},'
        '"indices":{"dtype":"int64","shape":[10,1],"values":[0,1,2,3,4,5,6,7,8,9]}}'
    )
    return common.Request(
        "/gathernd", gzip.compress(body.encode(), 6), {"Content-Type": common.JSON, "Content-Encoding": "gzip"}
    )


def inline() -> common.Request:
    """4 MB of float32 in, 10,000 tuples of 2, 40 KB out."""
    rng = np.random.default_rng(9)
    body = save({"data": rng.random((1000, 1000), dtype=np.float32), "indices": rng.integers(0, 1000, (10_000, 2))})
    return common.Request("/gathernd", body, SAFETENSORS)


WORK: Final[dict[str, Callable[[], common.Request]]] = {"inflate": inflate, "text": text, "inline": inline}
CONNECTIONS: Final = {"inflate": 1000, "text": 1000, "inline": 64}
"""Most connections that are open at a time: as many requests may wait for their answer."""


@dataclass
class Seen:
    """What a run of the generator saw: seconds of each answer by its status, and what went wrong.

    `good` counts the answers of status 200, those that came after the end too.
    """

    answers: dict[int, list[float]] = field(default_factory=dict)
    offered: int = 0
    unsent: int = 0
    broken: int = 0
    good: int = 0
    seconds: float = 0.0

    def rate(self, status: int) -> float:
        """Answers of `status` a second."""
        return len(self.answers.get(status, ())) / self.seconds

    def quantile(self, status: int, share: float) -> float:
        """Milliseconds within which `share` of the answers of `status` came."""
        times = sorted(self.answers.get(status, ()))
        return times[min(len(times) - 1, int(share * len(times)))] * 1e3 if times else 0.0


class Connection(asyncio.Protocol):
    """Sends one request at a time; `done` is told the status of each answer once it is whole, 0 for none."""

    def __init__(self, done: Callable[[Connection, int], None]) -> None:
        self.done = done
        self.due = 0.0
        self._status = self._missing = 0
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        """Ready to send."""
        self.transport = transport

    def send(self, request: bytes, due: float) -> None:
        """Ask; the answer's clock started at `due`."""
        self.due = due
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        """Count the bytes of the answer."""
        if not self._missing:
            self._head += data
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._status = int(head[9:12])
            fields = head.lower()
            self._missing = int(fields.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            self._head = b""
            data = rest
        self._missing -= len(data)
        if self._missing == 0:
            self.done(self, self._status)

    def connection_lost(self, exc: Exception | None) -> None:
        """The server has closed."""
        self.done(self, 0)


class Generator:
    """Asks for `seconds`: at `rate` requests a second, or, where that is 0, again with each answer."""

    def __init__(self, port: int, request: bytes, seconds: float, rate: float, connections: int) -> None:
        self.port = port
        self.request = request
        self.seconds = seconds
        self.rate = rate
        self.connections = connections
        self.seen = Seen(seconds=seconds)
        self._idle: list[Connection] = []
        self._open = 0
        self._end = 0.0

    async def run(self) -> Seen:
        """Ask until the time is over, and wait for the answers that are still to come, 20 s at most."""
        loop = asyncio.get_running_loop()
        for _ in range(self.connections):
            _, connection = await loop.create_connection(lambda: Connection(self._done), "127.0.0.1", self.port)
            self._idle.append(connection)
        self._open = self.connections
        begun = perf_counter()
        self._end = begun + self.seconds
        if self.rate:
            while (now := perf_counter()) < self._end:
                while self.seen.offered < (now - begun) * self.rate:
                    self._ask(begun + self.seen.offered / self.rate)
                await asyncio.sleep(0.001)
        else:
            while self._idle:
                self._ask(perf_counter())
            await asyncio.sleep(self.seconds)
        until = perf_counter() + 20
        while len(self._idle) < self._open and perf_counter() < until:  # noqa: ASYNC110  (it waits for a count)
            await asyncio.sleep(0.01)
        return self.seen

    def _ask(self, due: float) -> None:
        self.seen.offered += 1
        if self._idle:
            self._idle.pop().send(self.request, due)
        else:
            self.seen.unsent += 1

    def _done(self, connection: Connection, status: int) -> None:
        now = perf_counter()
        if status == 0:
            self._open -= 1
            self.seen.broken += 1
            if connection in self._idle:
                self._idle.remove(connection)
            return
        self.seen.good += status == 200
        if now <= self._end:
            self.seen.answers.setdefault(status, []).append(now - connection.due)
        if self.rate or now > self._end:
            self._idle.append(connection)
        else:
            connection.send(self.request, now)


def _generate(pipe: Any, cores: set[int], *arguments: Any) -> None:
    os.sched_setaffinity(0, cores)
    uvloop.install()
    pipe.send(asyncio.run(Generator(*arguments).run()))


def generate(cores: set[int], port: int, request: bytes, seconds: float, rate: float, connections: int) -> Seen:
    """Run a generator in a process of its own, on `cores`."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=_generate, args=(theirs, cores, port, request, seconds, rate, connections), daemon=True
    )
    process.start()
    theirs.close()
    seen: Seen = ours.recv()
    process.join(20)
    return seen


def raw(request: common.Request) -> bytes:
    """The bytes of a request."""
    fields = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    head = f"POST {request.path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{fields}Content-Length: {len(request.body)}\r\n\r\n"
    return head.encode() + request.body


def process_of(port: int) -> int:
    """The process that listens at `port`."""
    found = subprocess.run(["ss", "-Hltnp", f"sport = :{port}"], capture_output=True, text=True, check=True).stdout
    return int(found.partition("pid=")[2].partition(",")[0])


def memory(process: int, name: str) -> int:
    """Bytes of memory of a process: VmRSS now, VmHWM at its peak."""
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) << 10
    raise RuntimeError(f"process {process} has no {name}")


def put_tables(port: int) -> None:
    """Upload the resident tensors: `table`, 4096 rows of 4 KiB, and `flat`, 4096 bytes."""
    items = np.arange(ROWS * 4096, dtype=np.uint32).astype(np.uint8)
    with Client(f"http://127.0.0.1:{port}") as client:
        client.put("table", items.reshape(ROWS, 4096))
        client.put("flat", items[:4096])


def measure(work: str, seconds: float, times: float, budget: str, together: bool) -> str:
    """Capacity, then overload: one line of the table."""
    request = WORK[work]()
    served, generating = common.halves(together)

    def command(port: int) -> list[str]:
        flags = ["--memory-budget", budget, "--threads", str(len(served))]
        return [*common.on(served), *common.gathernd_command(port), *flags]

    def ask(port: int, seconds: float, rate: float, connections: int) -> Seen:
        return generate(generating, port, sent, seconds, rate, connections)

    with common.serving(command, limit=120) as port:
        put_tables(port)
        right = common.post(port, request)
        sent = raw(request)
        ask(port, 1, 0, PEAK_CONNECTIONS)  # warm
        process = process_of(port)
        start = common.cpu_seconds(process)
        first = ask(port, seconds, 0, PEAK_CONNECTIONS)
        peak_cpu = common.cpu_seconds(process) - start
        Path(f"/proc/{process}/clear_refs").write_text("5")
        before = memory(process, "VmRSS")
        start = common.cpu_seconds(process)
        seen = ask(port, seconds, times * first.rate(200), CONNECTIONS[work])
        cpu = common.cpu_seconds(process) - start
        grown = memory(process, "VmHWM") - before
        peak = (first.rate(200) + ask(port, seconds, 0, PEAK_CONNECTIONS).rate(200)) / 2
        if common.post(port, request) != right:
            raise RuntimeError("the service answers otherwise after the overload than before")
    others = sum(len(times) for status, times in seen.answers.items() if status not in (200, 503)) + seen.broken
    shares = seen.rate(200) / peak, (seen.good / cpu) / (first.good / peak_cpu)
    return (
        f"{work:8} {peak:9.1f} {seen.offered / seconds:9.1f} {seen.unsent / seen.offered:7.1%} "
        f"{seen.rate(200):9.1f} {shares[0]:7.1%} {shares[1]:7.1%} "
        f"{seen.quantile(200, 0.5):8.1f} {seen.quantile(200, 0.99):8.1f} {seen.rate(503):9.1f} "
        f"{seen.quantile(503, 0.5):8.1f} {seen.quantile(503, 0.99):8.1f} {others:6} {grown / MIB:8.0f}"
    )


def main() -> None:
    """Measure and print one line for each piece of work."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--times", type=float, default=4)
    parser.add_argument("--work", default=",".join(WORK))
    parser.add_argument("--budget", default="512MiB")
    parser.add_argument("--together", action="store_true")
    options = parser.parse_args()
    print(common.machine_line(), f"memory budget {options.budget}, {options.times:g} times the capacity")
    print(
        "work          peak/s offered/s  unsent goodput/s of peak per CPU   p50 ms   p99 ms refused/s   p50 ms "
        "  p99 ms others grew MiB"
    )
    for work in options.work.split(","):
        for _ in range(options.rounds):
            print(measure(work, options.seconds, options.times, options.budget, options.together), flush=True)


if __name__ == "__main__":
    main()
