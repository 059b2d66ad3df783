"""What observability, limits and keys cost small requests: the service against itself with them switched off.

python -m benchmarks.cost [--seconds 20] [--starts 4]

Two processes of the same program differ by more than what is looked for, by where their memory lies; and so do two
seconds of one process. So one process is driven, in which everything is switched off and on again every tenth of a
second (see `benchmarks.switched` for what that is), and the turns of each kind are added up. `starts` times it is
started anew. A loss is what `on` does worse than `off` in requests a second, and in processor time for a request. Every
request carries a key; `on` looks it up.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.request import Request as UrlRequest
from urllib.request import urlopen

import numpy as np

from app.api import keys
from benchmarks import common, peers
from benchmarks.switched import TURNS_FILE

GOAL = 5.0
"""Most percent that may be lost."""
WAYS = ("off", "on")


@dataclass
class Sum:
    """What the turns of one kind took and did."""

    seconds: float = 0.0
    processor: float = 0.0
    requests: int = 0

    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.seconds

    def each(self) -> float:
        """Processor time of a request, in microseconds."""
        return self.processor / self.requests * 1e6


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


def added_up(lines: list[str]) -> dict[str, Sum]:
    """The turns that `lines` tell of, by kind."""
    sums = {way: Sum() for way in WAYS}
    for line in lines:
        way, seconds, processor, requests = line.split()
        found = sums[way]
        found.seconds += float(seconds)
        found.processor += float(processor)
        found.requests += int(requests)
    return sums


def loss(on: float, off: float) -> float:
    """Percent by which `on`, where more is better, stays behind `off`."""
    return (1 - on / off) * 100


def measure(seconds: float, starts: int) -> dict[str, list[dict[str, Sum]]]:
    """The sums of each start by piece of work. Raises RuntimeError where a request fails."""
    found: dict[str, list[dict[str, Sum]]] = {}
    with tempfile.TemporaryDirectory(prefix="gathernd-cost-") as name:
        file, turns = Path(name) / "keys", Path(name) / "turns"
        key = keys.add(file, "cost", ["gather", "tensors"])

        def command(port: int) -> list[str]:
            flags = ["--host", "127.0.0.1", "--port", str(port), "--api-keys-file", str(file)]
            return [sys.executable, "-m", "benchmarks.switched", "turns", *flags]

        for _ in range(starts):
            with common.serving(command, environ={TURNS_FILE: str(turns)}, limit=240) as port:
                upload(port, key)
                for piece, request in work(key):
                    common.wrk(port, request, seconds=2)  # warms up, and does not count
                    before = len(turns.read_text().splitlines())
                    figures = common.wrk(port, request, seconds=seconds, warm=0)
                    if figures.errors:
                        raise RuntimeError(f"{figures.errors} requests failed")
                    lines = turns.read_text().splitlines()[before + 1 : -1]  # whole turns, all under load
                    found.setdefault(piece, []).append(added_up(lines))
    return found


def main() -> None:
    """Measure and print the losses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--starts", type=int, default=4)
    options = parser.parse_args()
    found = measure(options.seconds, options.starts)
    print(common.machine_line())
    heads = f"{'loss of rate':>14}{'starts':>16}{'loss by CPU':>14}{'starts':>16}"
    print(f"{'':14}{'':4}{'requests/s':>12}{'CPU us':>9}{heads}")
    for piece, starts in found.items():
        rates = [loss(sums["on"].rate(), sums["off"].rate()) for sums in starts]
        times = [loss(sums["off"].each(), sums["on"].each()) for sums in starts]
        for way in WAYS:
            rate, each = median(sums[way].rate() for sums in starts), median(sums[way].each() for sums in starts)
            line = f"{piece:14}{way:4}{rate:12,.0f}{each:9.2f}"
            if way == "on":
                for losses in (rates, times):
                    line += f"{median(losses):13.1f}%" + f"{min(losses):.1f} .. {max(losses):.1f}".rjust(16)
                line += "" if median(rates) <= GOAL else f"  more than {GOAL:g}%"
            print(line)


if __name__ == "__main__":
    main()
