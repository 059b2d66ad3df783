"""ScatterND and ScatterElements beside the runtimes that have them.

Times are in microseconds. `gathernd` is the kernel with up to `--threads` threads, `one thread` with one. Ours must
have NumPy's bits. A peer may be off by 1e-4 of the sum of absolutes; otherwise it is marked `!` and does not count. In
float16 the operator rounds a sum at each step; a peer that rounds once is marked, too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from app.kernels import numba_cpu
from benchmarks.kernels import turns
from benchmarks.kernels.gather import CARRIERS
from benchmarks.kernels.scatter_lines import LINES, Array, Inputs, Line, make_inputs, scatter_by_numpy
from benchmarks.kernels.turns import Call, Contender, measure_lines, take_turns
from benchmarks.peers.scatter_runtimes import PEERS

_SAME_SUMS: Final = 0.99
"""The share of float16 sums that a peer has to have as they are when each step is rounded."""


def ours(line: Line, inputs: Inputs, threads: int) -> Call:
    """The kernel, into an output that is used again, with its checks."""
    plan = line.plan
    carrier = CARRIERS[plan.item_size]
    data: Array = inputs.data.reshape(-1).view(carrier)
    updates: Array = inputs.updates.reshape(-1).view(carrier)
    indices = inputs.indices.reshape(-1)
    out: Array = np.zeros(plan.output_items, carrier)
    shaped = out.view(line.dtype).reshape(line.data)
    further = {"updates": updates}

    def call() -> Array:
        if numba_cpu.run(plan, data, indices, out, threads, further=further) >= 0:
            raise IndexError
        return shaped

    return call


def is_close(line: Line, found: Array, expected: Array, scale: Array) -> bool:
    """Whether a peer's result is right; additions may come in another order."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if line.reduction != "add" or expected.dtype.kind == "i":
        return np.array_equal(found, expected)
    if line.dtype == "float16":
        return bool((found == expected).mean() > _SAME_SUMS)
    apart = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    return bool((apart <= 1e-4 * scale).all())


def measure(
    line: Line, peers: Sequence[str], options: argparse.Namespace, loop: Any
) -> tuple[dict[str, float], set[str]]:
    """Microseconds of each contender, and who was wrong."""
    inputs = make_inputs(line)
    expected = scatter_by_numpy(line, inputs, np.empty_like(inputs.data))
    scale = scatter_by_numpy(line, inputs, np.empty(line.data, np.float64), absolute=True)
    calls: list[tuple[str, Contender]] = []
    for name, threads in (("gathernd", options.threads), ("one thread", 1)):
        own = ours(line, inputs, threads)
        if own().tobytes() != expected.tobytes():
            raise SystemExit(f"{line.name}: {name} is wrong")
        calls.append((name, own))
    wrong = set()
    for name in peers:
        try:
            for call in PEERS[name](line, inputs, options.threads):
                if is_close(line, np.asarray(call()), expected, scale):
                    calls.append((name, call))
                else:
                    wrong.add(name)
        except Exception as error:  # noqa: BLE001  (a peer lacks the type, in an error class of its own)
            print(f"    {name} cannot: {type(error).__name__}: {str(error).strip().splitlines()[0][:90]}")
    return take_turns(calls, loop, options.seconds, options.rounds), wrong


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    turns.add_options(parser, PEERS, seconds=0.5)


def run(options: argparse.Namespace) -> None:
    """Measure and print, a line at a time."""
    turns.prepare(options)
    measure_lines(LINES, measure, options, ["gathernd", "one thread", *options.peers])
