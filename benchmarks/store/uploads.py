"""Uploads of a table with keys and without, and the size of the index of its keys.

A figure is the best of the rounds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import common
from gathernd import Client


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--width", type=int, default=64, help="float32 of a row")
    parser.add_argument("--rounds", type=int, default=3)


def run(options: argparse.Namespace) -> None:
    """Print the seconds of an upload, and the bytes of the index a key."""
    random = np.random.default_rng(2)
    many = np.unique(random.integers(0, 2**62, options.rows + options.rows // 8 + 8))
    keys = random.permutation(many)[: options.rows]
    table = random.standard_normal((options.rows, options.width), np.float32)
    best = {"without keys": float("inf"), "with keys": float("inf")}
    with (
        tempfile.TemporaryDirectory(prefix="gathernd-bench-") as folder,
        common.serving(common.gathernd_command, environ={"GATHERND_STORE_DIR": folder}) as port,
        Client(f"http://127.0.0.1:{port}", timeout=600) as client,
    ):
        for _ in range(options.rounds):
            for name, before in best.items():
                given = keys if name == "with keys" else None
                begun = time.perf_counter()
                client.put(name.replace(" ", "-"), table, keys=given)
                best[name] = min(before, time.perf_counter() - begun)
        index = max(file.stat().st_size for file in Path(folder).rglob("*.index"))
    print(f"\nupload of {options.rows:,} rows of {options.width} float32")
    print(*(f"{name:20} {taken:7.2f} s" for name, taken in best.items()), sep="\n")
    print(f"with keys {best['with keys'] / best['without keys']:.2f} x without")
    print(f"{index / len(keys):.1f} bytes of the index a key")
