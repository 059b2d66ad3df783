"""How long bodies that are made to cost much are read, beside what `json.loads` takes for as many bytes of numbers.

python -m benchmarks.body_times [--size 200000] [--turns 5] [--group values] [--python]

Prints a line for each group of `benchmarks.costly_bodies` and `costly_operator_bodies`: the processor time of its
slowest body, alone and over that of `json.loads`, the median of some turns of both. With `--python` the codec in Python
reads them, which answers until all is compiled.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import thread_time
from typing import NamedTuple

from app import compile_request_functions
from app.kernels import numba_cpu
from benchmarks import common
from benchmarks.costly_bodies import MAKERS as GATHER_MAKERS
from benchmarks.costly_operator_bodies import MAKERS as OPERATOR_MAKERS
from benchmarks.read_body import Body, read

MAKERS = GATHER_MAKERS | OPERATOR_MAKERS
QUERY = 60_000
"""Most bytes of a query, which is a part of the header."""


class Slowest(NamedTuple):
    """The body of a group that takes the longest in comparison with `json.loads`."""

    times: float
    seconds: float
    body: Body


def seconds(run: Callable[[], object]) -> float:
    """Processor time of one run, whatever it ends with."""
    begun = thread_time()
    with suppress(ValueError, RecursionError):
        run()
    return thread_time() - begun


def slowest(group: str, size: int, turns: int) -> Slowest:
    """The slowest body of about `size` bytes."""
    found = []
    for body in MAKERS[group](min(size, QUERY) if group.startswith("query") else size):
        numbers = b"[" + b"0.123456789," * ((len(body.content) + len(body.query)) // 12) + b"0]"
        pairs = [
            (seconds(lambda body=body: read(body)), seconds(lambda numbers=numbers: json.loads(numbers)))  # type: ignore[misc]
            for _ in range(turns)
        ]
        ours, theirs = (median(column) for column in zip(*pairs, strict=True))
        found.append(Slowest(ours / theirs, ours, body))
    return max(found, key=lambda one: one.times)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=200_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--python", action="store_true")
    parser.add_argument("--group", choices=MAKERS, action="append")
    options = parser.parse_args()
    print(common.machine_line())
    with TemporaryDirectory(prefix="gathernd-body-times-") as cache:
        numba_cpu.configure(Path(cache))
        compile_request_functions.configure(Path(cache))
        numba_cpu.warm()
        compile_request_functions.warm()
        for function in compile_request_functions.FUNCTIONS if options.python else ():
            function.used.run = function.used.plain
        gc.collect()
        gc.freeze()
        for group in options.group or MAKERS:
            times, took, body = slowest(group, options.size, options.turns)
            about = f"{body.codec}, {body.name}, {len(body.content)} bytes"
            print(f"  {group:26}{times:7.1f} times{took * 1e3:9.2f} ms  {about}", flush=True)


if __name__ == "__main__":
    main()
