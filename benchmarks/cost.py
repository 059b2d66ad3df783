"""What observability, limits and keys cost small requests: the service against itself with them switched off.

python -m benchmarks.cost [--seconds 3] [--rounds 6] [--starts 2] [--ways off,on]

All ways run side by side, idle while another is measured, and take turns of `seconds` each, in the order off, on, on,
off and so on, so that a slow minute of the machine falls on all. A loss is the median over the rounds of what `on` does
worse than `off` right beside it. Beside the rate stands the processor time of the server for a request, which other
programs of the machine disturb less. Processes differ by a little for as long as they live: `starts` times all are
started anew. Every request carries a key; `on` looks it up (see `benchmarks.switched` for what is off).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import numpy as np

from app.api import keys
from benchmarks import common, peers
from benchmarks.switched import PID_FILE

GOAL = 5.0
"""Most percent that a way may lose."""


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

    def turn(self, request: common.Request, seconds: float) -> Turn:
        """Drive the server for a while. Raises RuntimeError where a request fails."""
        before = self.cpu_seconds()
        figures = common.wrk(self.port, request, seconds=seconds, warm=0)
        spent = self.cpu_seconds() - before
        if figures.errors:
            raise RuntimeError(f"{figures.errors} requests failed")
        return Turn(figures.rate, spent / figures.requests * 1e6)


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


def started(way: str, folder: Path, file: Path, key: str, stack: ExitStack) -> Running:
    """A server of one way, with the table in its store."""
    pid = folder / f"{way}.pid"

    def command(port: int) -> list[str]:
        flags = ["--host", "127.0.0.1", "--port", str(port), "--api-keys-file", str(file)]
        return [sys.executable, "-m", "benchmarks.switched", way, *flags]

    port = stack.enter_context(common.serving(command, environ={PID_FILE: str(pid)}, limit=240))
    upload(port, key)
    return Running(port, int(pid.read_text()))


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
                servers = {way: started(way, folder, file, key, stack) for way in order}
                for piece, request in work(key):
                    answers = [common.post(server.port, request) for server in servers.values()]
                    if any(len(answer) != len(answers[0]) for answer in answers):
                        raise RuntimeError("the ways answer differently")
                    turns = found.setdefault(piece, {way: [] for way in ways})
                    for server in servers.values():
                        server.turn(request, min(seconds, 1.0))  # warms up, and does not count
                    for turn in range(rounds):
                        for way in ways if turn % 2 == 0 else ways[::-1]:
                            turns[way].append(servers[way].turn(request, seconds))
    return found


def main() -> None:
    """Measure and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--starts", type=int, default=2)
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
