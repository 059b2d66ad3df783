"""Seconds from spawning the service to the first 200 of /readyz: empty cache, warm cache, and NumPy's kernel."""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time

from benchmarks import common


def seconds_to_ready(cache: str, kernel: str = "numba") -> float:
    """Start the service on `cache` and stop it; seconds until it was ready, to 5 ms."""
    started = time.perf_counter()
    environ = {"GATHERND_CACHE_DIR": cache, "GATHERND_KERNEL": kernel}
    with common.serving(common.gathernd_command, environ=environ, limit=300, pause=0.005):
        return time.perf_counter() - started


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--rounds", type=int, default=3)


def run(options: argparse.Namespace) -> None:
    """Print the best and the worst of the rounds."""
    empty, warm, plain = [], [], []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="gathernd-cache-") as cache:
            empty.append(seconds_to_ready(cache))
            command = [common.gathernd_command(0)[0], "warm", "--cache-dir", cache]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            warm.append(seconds_to_ready(cache))
        with tempfile.TemporaryDirectory(prefix="gathernd-cache-") as cache:
            plain.append(seconds_to_ready(cache, "numpy"))
    for name, times in (("empty cache", empty), ("warm cache", warm), ("kernel numpy", plain)):
        print(f"{name:12}  ready after {min(times):6.2f} s at best, {max(times):6.2f} s at worst, of {options.rounds}")
