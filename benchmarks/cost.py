"""What observability, limits and keys cost small requests: the service against itself with them switched off.

python -m benchmarks.cost [--seconds 4] [--rounds 4] [--starts 4] [--ways off,on]

All ways run and are driven side by side, and all but one are stopped (SIGSTOP), in turns of a tenth of a second, so
that a slow moment of the machine falls on all. In a round each runs for `seconds`. A loss is the median over the rounds
of what `on` does worse than `off` in the same round. Beside the rate stands the processor time of the server for a
request, which other programs of the machine disturb less. Processes differ by a little for as long as they live, by
where their memory lies: so that is not random, and `starts` times all are started anew, with another seed of hashes.
Every request carries a key; `on` looks it up (see `benchmarks.switched` for what is off).
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import numpy as np

from app.api import keys
from benchmarks import common, peers
from benchmarks.switched import PID_FILE

GOAL = 5.0
"""Most percent that a way may lose."""
TURN_S = 0.1


@dataclass
class Turn:
    """One turn of one way: requests a second, and microseconds of the server's processors for each."""

    rate: float
    cpu: float


@dataclass
class Running:
    """A server that was started in one of the ways."""

    port: int
    pid: int

    def cpu_seconds(self) -> float:
        """Processor time of all its threads until now."""
        spent = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            spent += int((task / "schedstat").read_text().split()[0])
        return spent / 1e9

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        os.kill(self.pid, number)


def work(key: str) -> Iterator[tuple[str, common.Request]]:
    """Tiny JSON and a binary lookup, both with a key."""
    for name, way, request in peers.work():
        if way == "native" and name in ("tiny json", "lookup binary"):
            headers = {**request.headers, "Authorization": f"Bearer {key}"}
            yield name, common.Request(request.path, request.body, headers)


def upload(port: int, key: str) -> None:
    """Make the table of the lookups resident."""
    table = np.random.default_rng(7).random((peers.ROWS, peers.WIDTH), dtype=np.float32)
    url = f"http://127.0.0.1:{port}/tensors/items?dtype=float32&shape={peers.ROWS},{peers.WIDTH}"
    headers = {"Content-Type": "application/octet-stream", "Authorization": f"Bearer {key}"}
    with urlopen(UrlRequest(url, table.tobytes(), headers, method="PUT")) as answer:
        answer.read()


def started(way: str, seed: int, folder: Path, file: Path, key: str, stack: ExitStack) -> Running:
    """A server of one way, with the table in its store."""
    pid = folder / f"{way}.pid"

    def command(port: int) -> list[str]:
        flags = ["--host", "127.0.0.1", "--port", str(port), "--api-keys-file", str(file)]
        return ["setarch", "--addr-no-randomize", sys.executable, "-m", "benchmarks.switched", way, *flags]

    environ = {PID_FILE: str(pid), "PYTHONHASHSEED": str(seed)}
    port = stack.enter_context(common.serving(command, environ=environ, limit=240))
    upload(port, key)
    return Running(port, int(pid.read_text()))


def round_of(servers: dict[str, Running], request: common.Request, seconds: float) -> dict[str, Turn]:
    """Drive the servers by turns, each for so long in all. Raises RuntimeError where a request fails."""
    ran = dict.fromkeys(servers, 0.0)
    whole = seconds * len(servers)
    with ThreadPoolExecutor(len(servers)) as pool:
        for server in servers.values():
            server.send(signal.SIGSTOP)
        before = {way: server.cpu_seconds() for way, server in servers.items()}
        driven = {
            way: pool.submit(common.wrk, server.port, request, seconds=whole, warm=0) for way, server in servers.items()
        }
        try:
            end = monotonic() + whole
            order = list(servers)
            while monotonic() < end:
                for way in order:
                    servers[way].send(signal.SIGCONT)
                    begun = monotonic()
                    sleep(TURN_S)
                    servers[way].send(signal.SIGSTOP)
                    ran[way] += monotonic() - begun
                order.reverse()
        finally:
            for server in servers.values():
                server.send(signal.SIGCONT)
        figures = {way: future.result() for way, future in driven.items()}
    if errors := sum(one.errors for one in figures.values()):
        raise RuntimeError(f"{errors} requests failed")
    return {
        way: Turn(one.requests / ran[way], (servers[way].cpu_seconds() - before[way]) / one.requests * 1e6)
        for way, one in figures.items()
    }


def loss(on: float, off: float) -> float:
    """Percent by which `on`, where more is better, stays behind `off`."""
    return (1 - on / off) * 100


def measure(ways: list[str], seconds: float, rounds: int, starts: int) -> dict[str, dict[str, list[Turn]]]:
    """The turns by piece of work and way; turn n of each way was in the same round."""
    found: dict[str, dict[str, list[Turn]]] = {}
    with tempfile.TemporaryDirectory(prefix="gathernd-cost-") as name:
        folder = Path(name)
        file = folder / "keys"
        key = keys.add(file, "cost", ["gather", "tensors"])
        for start in range(starts):
            order = ways if start % 2 == 0 else ways[::-1]
            with ExitStack() as stack:
                servers = {way: started(way, start, folder, file, key, stack) for way in order}
                for piece, request in work(key):
                    answers = [common.post(server.port, request) for server in servers.values()]
                    if any(len(answer) != len(answers[0]) for answer in answers):
                        raise RuntimeError("the ways answer differently")
                    turns = found.setdefault(piece, {way: [] for way in ways})
                    round_of(servers, request, min(seconds, 1.0))  # warms up, and does not count
                    for _ in range(rounds):
                        for way, turn in round_of(servers, request, seconds).items():
                            turns[way].append(turn)
    return found


def main() -> None:
    """Measure and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--ways", default="off,on", help="the first is what the others are compared with")
    options = parser.parse_args()
    ways = options.ways.split(",")
    found = measure(ways, options.seconds, options.rounds, options.starts)
    print(common.machine_line())
    print(f"{'':14}{'':8}{'requests/s':>12}{'CPU us':>9}{'loss of rate':>14}{'rounds':>18}{'loss by CPU':>13}")
    for piece, turns in found.items():
        base = turns[ways[0]]
        for way in ways:
            rate, cpu = median(turn.rate for turn in turns[way]), median(turn.cpu for turn in turns[way])
            line = f"{piece:14}{way:8}{rate:12,.0f}{cpu:9.2f}"
            if way != ways[0]:
                rates = [loss(turn.rate, other.rate) for turn, other in zip(turns[way], base, strict=True)]
                times = [loss(other.cpu, turn.cpu) for turn, other in zip(turns[way], base, strict=True)]
                spread = f"{min(rates):.1f} .. {max(rates):.1f}"
                line += f"{median(rates):13.1f}%{spread:>18}{median(times):12.1f}%"
                line += "" if way != "on" or median(rates) <= GOAL else f"  more than {GOAL:g}%"
            print(line)


if __name__ == "__main__":
    main()
