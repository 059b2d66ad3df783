"""Scatters to a cluster beside one machine: how many a second, and at what processor time.

A table of 200,000 rows of 64 float32 has 4 ranges. A scatter adds to 16 rows, with an idempotency key, in the binary
format: one at a time and 16 at a time, to rows of one range and to rows of all. The stores share one disk, so a scatter
costs as many flushes as it has replicas.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from statistics import quantiles

import numpy as np
from safetensors.numpy import save

from benchmarks import common
from benchmarks.changes import times_of
from benchmarks.cluster.machines import RANGES, Cluster
from benchmarks.work import ROWS, WIDTH, upload

CHANGED, BODIES = 16, 64
AT_A_TIME = (1, 16)
PATH = "/tensors/items/scatter?reduction=add"
RANGE_ROWS = ROWS // RANGES


def bodies(low: int, high: int) -> list[bytes]:
    """Requests that add 1 to rows in [low, high)."""
    rng = np.random.default_rng(0)
    updates = np.ones((CHANGED, WIDTH), np.float32)
    return [save({"indices": rng.integers(low, high, (CHANGED, 1)), "updates": updates}) for _ in range(BODIES)]


def rates(cluster: Cluster, whole: int, seconds: float) -> None:
    """Print scatters a second, their times, and processor time."""
    print(f"\nScatters of {CHANGED} rows:")
    print(f"{'':32}{'at a time':>10}{'scatters/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'service µs':>12}{'shards µs':>12}")
    for name, port, high in (
        ("one machine", whole, ROWS),
        ("cluster, rows of one range", cluster.router, RANGE_ROWS),
        (f"cluster, rows of {RANGES} ranges", cluster.router, ROWS),
    ):
        asked = cycle(bodies(0, high))
        times_of(port, PATH, asked, max(AT_A_TIME), 1.0)
        for width in AT_A_TIME:
            before = (common.processor_time(whole), *cluster.spent())
            times = times_of(port, PATH, asked, width, seconds)
            after = (common.processor_time(whole), *cluster.spent())
            spent = [(late - early) / len(times) * 1e6 for early, late in zip(before, after, strict=True)]
            own, shards = (spent[0], "") if port == whole else (spent[1], f"{spent[2]:12.0f}")
            cut = quantiles(times, n=100)
            rate = len(times) / seconds
            print(f"{name:32}{width:10}{rate:12,.0f}{cut[49]:10.2f}{cut[98]:10.2f}{own:12.0f}{shards}", flush=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--seconds", type=float, default=5, help="of each line")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--folder", help="where the stores lie")


def run(given: argparse.Namespace) -> None:
    """Print the table."""
    table = np.zeros((ROWS, WIDTH), np.float32)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=given.folder)))
        environ = {"GATHERND_THREADS": "1"}
        whole = stack.enter_context(common.serving(common.gathernd_command, environ=environ))
        cluster = Cluster(stack, folder, replicas=given.replicas)
        for port in (whole, cluster.router):
            upload(port, table)
        rates(cluster, whole, given.seconds)
