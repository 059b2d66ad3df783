"""The gradients of gathers beside torch's, TensorFlow's and NumPy's, on the same work, in the same run.

    python -m benchmarks.backward [--seconds 0.5] [--rounds 5] [--lines REGEX] [--threads 2] [--peers numpy,torch]

All contenders take turns on each line, as in `benchmarks.kernels`; a figure is in microseconds. Dense work is rows of
float32 added into a table of zeros: torch has `index_add_` and the gradients of embedding and of indexing, TensorFlow
`tensor_scatter_nd_add` and `unsorted_segment_sum`, NumPy `add.at`. Sparse work is the rows that are named, each once:
torch has the coalesced gradient of a sparse embedding. A peer gets indices of 0 and more, and checks no more of them
than it does by itself. A result that is further from NumPy's than 1e-5 of the sum of absolutes is marked `!`.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.kernels import numba_cpu
from app.memory.output_buffer_pool import OutputBufferPool
from app.operators.backward_plan import BackwardPlan
from app.operators.gather_plan import GatherPlan
from benchmarks.beside_peers import Call, Contender, begin, measure_lines, take_turns

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Line:
    """`tuples` rows of `width` float32, added into a table of `rows`; those named are spread as `spread` says."""

    name: str
    tuples: int
    rows: int
    width: int
    sparse: bool = False
    spread: str = "uniform"


LINES = (
    Line("256 rows of 64 into 200k", 256, 200_000, 64),
    Line("256 rows of 64 into 200k, sparse", 256, 200_000, 64, sparse=True),
    Line("10k rows of 64 into 200k", 10_000, 200_000, 64),
    Line("10k rows of 64 into 200k, sparse", 10_000, 200_000, 64, sparse=True),
    Line("100k rows of 64 into 200k", 100_000, 200_000, 64),
    Line("100k rows of 64 into 200k, sparse", 100_000, 200_000, 64, sparse=True),
    Line("100k rows of 64 into 200k, few often", 100_000, 200_000, 64, spread="zipf"),
    Line("100k rows of 64 into 200k, few often, sparse", 100_000, 200_000, 64, sparse=True, spread="zipf"),
    Line("300k rows of 64 into 100", 300_000, 100, 64),
    Line("300k rows of 64 into 1", 300_000, 1, 64),
    Line("300k rows of 64 into 100, sparse", 300_000, 100, 64, sparse=True),
    Line("20k rows of 1024 into 5k", 20_000, 5_000, 1024),
    Line("1M items into 1M", 1_000_000, 1_000_000, 1),
    Line("1M items into 1000", 1_000_000, 1_000, 1),
    Line("1M items into 1", 1_000_000, 1, 1),
    Line("300k rows of 4 into 100k", 300_000, 100_000, 4),
    Line("1k rows of 4 into 1M", 1_000, 1_000_000, 4),
)


def make_inputs(line: Line) -> tuple[Indices, NDArray[np.float32]]:
    source = np.random.default_rng(0)
    if line.spread == "zipf":
        places = source.zipf(1.2, line.tuples) % line.rows
    else:
        places = source.integers(0, line.rows, line.tuples)
    return places.astype(np.int64), source.standard_normal((line.tuples, line.width)).astype(np.float32)


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


def numpy_ways(line: Line, indices: Indices, gradient: NDArray[np.float32], threads: int) -> Iterator[Call]:
    if line.sparse:

        def sparse() -> Any:
            named, group = np.unique(indices, return_inverse=True)
            sums = np.zeros((len(named), line.width), np.float32)
            np.add.at(sums, group, gradient)
            return sums

        yield sparse
        return

    def dense() -> Any:
        sums = np.zeros((line.rows, line.width), np.float32)
        np.add.at(sums, indices, gradient)
        return sums

    yield dense


def torch_ways(line: Line, indices: Indices, gradient: NDArray[np.float32], threads: int) -> Iterator[Call]:
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(threads)
    places, rows = torch.from_numpy(indices), torch.from_numpy(gradient)
    if line.sparse:
        size = (line.rows, line.width)
        yield lambda: torch.sparse_coo_tensor(places[None], rows, size, check_invariants=False).coalesce().values()

        def by_unique() -> Any:
            named, group = torch.unique(places, return_inverse=True)
            return torch.zeros(len(named), line.width).index_add_(0, group, rows)

        yield by_unique
        return
    out = torch.zeros(line.rows, line.width)
    yield lambda: out.zero_().index_add_(0, places, rows)
    yield lambda: torch.ops.aten.embedding_dense_backward(rows, places, line.rows, -1, False)
    yield lambda: out.zero_().index_put_((places,), rows, accumulate=True)


def tensorflow_ways(line: Line, indices: Indices, gradient: NDArray[np.float32], threads: int) -> Iterator[Call]:
    tf: Any = importlib.import_module("tensorflow")
    places, rows = tf.constant(indices), tf.constant(gradient)
    if line.sparse:

        def sparse() -> Any:
            named, group = tf.unique(places)
            return tf.math.unsorted_segment_sum(rows, group, tf.size(named))

        yield sparse
        return
    column, shape = places[:, None], tf.constant([line.rows, line.width], tf.int64)
    yield lambda: tf.scatter_nd(column, rows, shape)
    yield lambda: tf.math.unsorted_segment_sum(rows, places, line.rows)


PEERS: Mapping[str, Callable[[Line, Indices, NDArray[np.float32], int], Iterator[Call]]] = {
    "numpy": numpy_ways,
    "torch": torch_ways,
    "tensorflow": tensorflow_ways,
}


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


def main() -> None:
    """Measure and print, a line at a time."""
    options = begin(__doc__, PEERS, seconds=0.5)
    measure_lines(LINES, measure, options, ["gathernd", *options.peers])


if __name__ == "__main__":
    main()
