"""Scatters and upserts of 16 rows of one machine, one at a time and 16 at a time; lookups beside upserts.

Rows are 64 float32, in the binary format; each change has an idempotency key and is durable when it is answered.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import count, cycle
from statistics import quantiles

import numpy as np
from safetensors.numpy import save

from benchmarks import common
from benchmarks.changes import paced, times_of
from benchmarks.work import WIDTH
from gathernd import Client

CHANGED, BODIES = 16, 64
AT_A_TIME = (1, 16)
UPSERTS, UPSERTED = 100.0, 100
"""Upserts a second beside lookups, and rows of each."""
LOOKUPS, LOOKED_UP = 200.0, 256
"""Lookups a second, and keys of each."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seconds", type=float, default=5, help="of each line")


def in_turn(name: str, rows: int, changed: int = CHANGED) -> Iterator[bytes]:
    """Yield changes of `changed` random rows, which `name` names by position or by key."""
    rng = np.random.default_rng(0)
    updates = np.ones((changed, WIDTH), np.float32)
    picks = [rng.choice(rows, changed, replace=False) for _ in range(BODIES)]
    if name == "indices":
        return cycle([save({name: pick[:, None], "updates": updates}) for pick in picks])
    return cycle([save({name: pick, "updates": updates}) for pick in picks])


def new_keys(rows: int) -> Iterator[bytes]:
    """Upserts of keys that the table lacks."""
    updates = np.ones((CHANGED, WIDTH), np.float32)
    return (save({"keys": np.arange(first, first + CHANGED), "updates": updates}) for first in count(rows, CHANGED))


def run(options: argparse.Namespace) -> None:
    """Print changes a second, their times, and the processor time of each."""
    rows = options.rows
    work = {
        "scatter by position": ("/tensors/plain/scatter?reduction=add", in_turn("indices", rows)),
        "upsert, known keys": ("/tensors/keyed/upsert?reduction=add", in_turn("keys", rows)),
        "upsert, new keys": ("/tensors/keyed/upsert", new_keys(rows)),
    }
    with common.serving(common.gathernd_command) as port:
        with Client(f"http://127.0.0.1:{port}", timeout=600) as client:
            table = np.zeros((rows, WIDTH), np.float32)
            client.put("plain", table)
            client.put("keyed", table, keys=np.arange(rows))
        print(f"{'':24}{'at a time':>10}{'changes/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'service µs':>12}")
        for name, (path, bodies) in work.items():
            times_of(port, path, bodies, max(AT_A_TIME), 0.5)
            for width in AT_A_TIME:
                before = common.processor_time(port)
                times = times_of(port, path, bodies, width, options.seconds)
                spent = (common.processor_time(port) - before) / len(times) * 1e6
                cut = quantiles(times, n=100)
                rate = len(times) / options.seconds
                print(f"{name:24}{width:10}{rate:12,.0f}{cut[49]:10.2f}{cut[98]:10.2f}{spent:12.0f}", flush=True)
        print(f"\n{LOOKED_UP} keys, {LOOKUPS:.0f} lookups a second:")
        rng = np.random.default_rng(1)
        bodies = cycle([save({"keys": rng.integers(0, rows, LOOKED_UP)}) for _ in range(BODIES)])
        lookups = ("/gather?tensor=keyed", bodies, LOOKUPS)
        upserts = ("/tensors/keyed/upsert", in_turn("keys", rows, UPSERTED), UPSERTS)
        beside = f"beside {UPSERTS * UPSERTED:,.0f} upserted rows/s"
        for name, asked in (("alone", {"lookups": lookups}), (beside, {"lookups": lookups, "upserts": upserts})):
            print(f"{name:34}", end="")
            for kind, times in paced(port, asked, options.seconds).items():
                cut = quantiles(times, n=100)
                print(f"{kind:>10}: p50 {cut[49]:.2f} ms, p99 {cut[98]:.2f} ms", end="", flush=True)
            print()
