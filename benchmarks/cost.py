"""What observability, limits and keys cost small requests: the service against itself with them switched off.

python -m benchmarks.cost [--seconds 20] [--starts 4]

Two processes of the same program differ by more than what is looked for, by where their memory lies; and so do two
seconds of one process. So one process is driven, in which everything is switched off and on again every tenth of a
second (see `benchmarks.switched` for what that is). A loss is what two turns of `on` do worse than the turns of `off`
before and after them, in requests a second and in processor time for a request: the median of all fours of a start, and
of all `starts`. The service has processors of its own, and so has wrk. Every request carries a key; `on` looks it up.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import numpy as np

from app.security import api_keys
from benchmarks import common, peers
from benchmarks.switched import TURNS_FILE

GOAL = 5.0
"""Most percent that may be lost."""
WAYS = ("off", "on")
FOUR = ("off", "on", "on", "off")
"""The turns that are compared with each other, so that what slows the machine down for a while weighs on both."""


class Turn(NamedTuple):
    """What one turn took and did: seconds, processor seconds, requests."""

    way: str
    seconds: float
    processor: float
    requests: int

    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds

    def each(self) -> float:
        """Processor time of a request, in microseconds."""
        return self.processor / self.requests * 1e6


class Start(NamedTuple):
    """The medians of one start: rates and processor times by way, and the percents lost of both."""

    rates: dict[str, float]
    times: dict[str, float]
    rate_lost: float
    time_lost: float


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


def judged(lines: list[str]) -> Start:
    """The medians of the turns that `lines` tell of. A loss is the median of those of all fours of turns.

    Raises RuntimeError where there is no four.
    """
    turns = []
    for line in lines:
        way, seconds, processor, requests = line.split()
        turns.append(Turn(way, float(seconds), float(processor), int(requests)))
    rate_lost, time_lost = [], []
    for at in range(len(turns) - 3):
        four = turns[at : at + 4]
        if tuple(turn.way for turn in four) != FOUR or not all(turn.requests for turn in four):
            continue
        before, *on, after = four
        off = before, after
        rate_lost.append(loss(sum(turn.rate() for turn in on), sum(turn.rate() for turn in off)))
        time_lost.append(loss(sum(turn.each() for turn in off), sum(turn.each() for turn in on)))
    if not rate_lost:
        raise RuntimeError("wrk did not run long enough for turns of both kinds")
    rates = {way: median(turn.rate() for turn in turns if turn.way == way) for way in WAYS}
    times = {way: median(turn.each() for turn in turns if turn.way == way and turn.requests) for way in WAYS}
    return Start(rates, times, median(rate_lost), median(time_lost))


def loss(less: float, more: float) -> float:
    """Percent by which `less` stays behind `more`."""
    return (1 - less / more) * 100


def measure(seconds: float, starts: int) -> dict[str, list[Start]]:
    """What each start showed by piece of work. Raises RuntimeError where a request fails."""
    found: dict[str, list[Start]] = {}
    with tempfile.TemporaryDirectory(prefix="gathernd-cost-") as name:
        file, turns = Path(name) / "keys", Path(name) / "turns"
        key = api_keys.add(file, "cost", ["gather", "tensors"])

        served, driving = common.halves()
        os.sched_setaffinity(0, driving)
        environ = {TURNS_FILE: str(turns), "GATHERND_CACHE_DIR": f"{name}/cache"}

        def command(port: int) -> list[str]:
            flags = ["--host", "127.0.0.1", "--port", str(port), "--api-keys-file", str(file)]
            return [*common.on(served), sys.executable, "-m", "benchmarks.switched", "turns", *flags]

        for _ in range(starts):
            with common.serving(command, environ=environ, limit=240) as port:
                upload(port, key)
                for piece, request in work(key):
                    common.wrk(port, request, seconds=2)  # warms up, and does not count
                    before = len(turns.read_text().splitlines())
                    figures = common.wrk(port, request, seconds=seconds, warm=0)
                    if figures.errors:
                        raise RuntimeError(f"{figures.errors} requests failed")
                    lines = turns.read_text().splitlines()[before + 1 : -1]  # whole turns, all under load
                    found.setdefault(piece, []).append(judged(lines))
    return found


def main() -> None:
    """Measure and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--starts", type=int, default=4)
    options = parser.parse_args()
    print(common.machine_line())
    found = measure(options.seconds, options.starts)
    heads = f"{'loss of rate':>14}{'starts':>16}{'loss by CPU':>14}{'starts':>16}"
    print(f"{'':14}{'':4}{'requests/s':>12}{'CPU us':>9}{heads}")
    for piece, starts in found.items():
        rates, times = [start.rate_lost for start in starts], [start.time_lost for start in starts]
        for way in WAYS:
            rate, each = median(start.rates[way] for start in starts), median(start.times[way] for start in starts)
            line = f"{piece:14}{way:4}{rate:12,.0f}{each:9.2f}"
            if way == "on":
                for losses in (rates, times):
                    line += f"{median(losses):13.1f}%" + f"{min(losses):.1f} .. {max(losses):.1f}".rjust(16)
                line += "" if median(rates) <= GOAL else f"  more than {GOAL:g}%"
            print(line)


if __name__ == "__main__":
    main()
