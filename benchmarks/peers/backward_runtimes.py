"""What `kernels backward` compares with: every way that a runtime has for a gradient."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.kernels.backward_lines import Indices, Line
from benchmarks.kernels.turns import Call


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
