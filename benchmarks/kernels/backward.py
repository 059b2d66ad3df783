"""Gradients of gathers beside PyTorch, TensorFlow and NumPy.

Dense work adds rows of float32 into a table of zeros; sparse work gives each row that is named once. Times are in
microseconds. A result further from NumPy's than 1e-4 of the largest sum of absolutes is marked `!`.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.kernels import numba_cpu
from app.memory.output_buffer_pool import OutputBufferPool
from app.operators.backward_plan import BackwardPlan
from app.operators.gather_plan import GatherPlan
from benchmarks.kernels import turns
from benchmarks.kernels.backward_lines import LINES, Indices, Line, make_inputs
from benchmarks.kernels.turns import Call, Contender, measure_lines, take_turns
from benchmarks.peers.backward_runtimes import PEERS, numpy_ways


def ours(line: Line, indices: Indices, gradient: NDArray[np.float32], threads: int) -> Call:
    """The kernel, into an output that is used again, with its checks."""
    plan = BackwardPlan(GatherPlan(1, line.tuples, (line.rows,), line.width, 4, False, True), "float32", line.sparse)
    out = OutputBufferPool(1 << 30).empty_aligned(plan.output_items, np.dtype(np.uint32))
    further = {"scratch": np.zeros(plan.scratch_items, np.int64)}
    count = np.zeros(1, np.int64)
    if line.sparse:
        further |= {"places": np.zeros(plan.rows, np.int64), "count": count}
    items, shaped = gradient.reshape(-1).view(np.uint32), out.view(np.float32).reshape(-1, line.width)

    def call() -> NDArray[np.float32]:
        count[0] = 0
        if numba_cpu.run(plan, items, indices, out, threads, further=further) >= 0:
            raise IndexError
        return shaped[: int(count[0])] if line.sparse else shaped

    return call


def measure(line: Line, peers: list[str], options: argparse.Namespace, loop: Any) -> tuple[dict[str, float], set[str]]:
    """Microseconds of each contender, and who was wrong."""
    indices, gradient = make_inputs(line)
    (by_numpy,) = numpy_ways(line, indices, gradient, 1)
    (totals,) = numpy_ways(line, indices, np.abs(gradient), 1)
    expected, scale = by_numpy(), totals() + 1e-30
    own = ours(line, indices, gradient, options.threads)
    if not np.array_equal(own(), expected):
        raise SystemExit(f"{line.name}: gathernd is wrong")
    calls: list[tuple[str, Contender]] = [("gathernd", own)]
    wrong = set()
    for name in peers:
        for call in PEERS[name](line, indices, gradient, options.threads):
            found = np.asarray(call())
            # TensorFlow's `unique` keeps the order of appearance; what it adds is the same.
            ordered = found if found.shape == expected.shape and not line.sparse else np.sort(found, axis=0)
            compared = expected if ordered is found else np.sort(expected, axis=0)
            if found.shape == expected.shape and (np.abs(ordered - compared) <= 1e-4 * scale.max()).all():
                calls.append((name, call))
            else:
                wrong.add(name)
    return take_turns(calls, loop, options.seconds, options.rounds), wrong


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    turns.add_options(parser, PEERS, seconds=0.5)


def run(options: argparse.Namespace) -> None:
    """Measure and print, a line at a time."""
    turns.prepare(options)
    measure_lines(LINES, measure, options, ["gathernd", *options.peers])
