"""The lookup of a recommender: 26 tables with bags of the sizes of MLPerf DLRM-DCNv2, beside PyTorch and NumPy.

Ways take turns, each turn with fresh indices. PyTorch has `embedding_bag`, and `index_select` with a sum; NumPy has
`take` with `add.reduceat`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.kernels import numba_cpu, reference
from app.kernels.check_lookup import FeatureArrays
from app.operators.lookup_plan import FeaturePlan

BAGS = (3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1)
BATCH, WIDTH, ROWS = 128, 128, 100_000
Array = NDArray[Any]


def tables() -> list[Array]:
    """100,000 rows of 128 float32 for each feature."""
    source = np.random.default_rng(16)
    return [source.standard_normal((ROWS, WIDTH), dtype=np.float32) for _ in BAGS]


def indices(source: np.random.Generator) -> list[Array]:
    """Positions for a batch: of each feature as many as its bags have."""
    return [source.integers(0, ROWS, BATCH * size) for size in BAGS]


OFFSETS = [np.arange(BATCH, dtype=np.int64) * size for size in BAGS]


def kernel_way(kernel: Any, data: list[Array], threads: int) -> Callable[[list[Array]], Array]:
    """The service's kernel, into one output."""
    out = np.empty(BATCH * WIDTH * len(BAGS), np.uint32)
    stride = 4 * WIDTH * len(BAGS)
    plans = [
        FeaturePlan(ROWS, WIDTH, 4, "float32", "sum", BATCH * size, BATCH, False, 1, 0, stride, 4 * WIDTH * number)
        for number, size in enumerate(BAGS)
    ]
    views = [table.view(np.uint32).reshape(-1) for table in data]

    def run(places: list[Array]) -> Array:
        arrays = [
            FeatureArrays(table, one, offsets, None, None, out)
            for table, one, offsets in zip(views, places, OFFSETS, strict=True)
        ]
        assert kernel.lookup(plans, arrays, threads) == -1
        return out.view(np.float32).reshape(BATCH, -1)

    return run


def numpy_way(data: list[Array]) -> Callable[[list[Array]], Array]:
    """take, then add.reduceat, then concatenate."""

    def run(places: list[Array]) -> Array:
        bags = [
            np.add.reduceat(np.take(table, one, axis=0), offsets, axis=0)
            for table, one, offsets in zip(data, places, OFFSETS, strict=True)
        ]
        return np.concatenate(bags, axis=1)

    return run


def torch_ways(data: list[Array], threads: int) -> Iterator[tuple[str, Callable[[list[Array]], Array]]]:
    """embedding_bag and index_select with a sum, both joined by cat; nothing where torch is not installed."""
    try:
        import torch  # noqa: PLC0415
    except ImportError:
        print("left out, since it is not installed: torch")
    else:
        torch.set_num_threads(threads)
        weights = [torch.from_numpy(table) for table in data]
        offsets = [torch.from_numpy(one) for one in OFFSETS]

        def bags(places: list[Array]) -> Array:
            found = [
                torch.nn.functional.embedding_bag(torch.from_numpy(one), table, starts, mode="sum")
                for one, table, starts in zip(places, weights, offsets, strict=True)
            ]
            joined: Array = torch.cat(found, 1).numpy()
            return joined

        def select(places: list[Array]) -> Array:
            found = [
                table.index_select(0, torch.from_numpy(one)).view(BATCH, -1, WIDTH).sum(1)
                for one, table in zip(places, weights, strict=True)
            ]
            joined: Array = torch.cat(found, 1).numpy()
            return joined

        yield "torch embedding_bag", bags
        yield "torch index_select, sum", select


def measure(ways: dict[str, Callable[[list[Array]], Any]], rounds: int) -> dict[str, float]:
    """The median time of each way in seconds, taken in turns, each turn with fresh indices.

    Raises RuntimeError where a way gives otherwise than the first.
    """
    source = np.random.default_rng(1)
    times: dict[str, list[float]] = {name: [] for name in ways}
    first = indices(source)
    wanted = next(iter(ways.values()))(first)
    for name, way in ways.items():
        found = way(first)
        if isinstance(wanted, np.ndarray) and not np.allclose(found, wanted, 1e-5, 1e-4):
            raise RuntimeError(f"{name} gives another result")
    for _ in range(rounds):
        for name, way in ways.items():
            places = indices(source)
            begun = perf_counter()
            way(places)
            times[name].append(perf_counter() - begun)
    return {name: float(np.median(taken)) for name, taken in times.items()}


def show(title: str, times: dict[str, float]) -> None:
    """Print times in microseconds, and as multiples of the first."""
    print(f"\n{title}")
    base = next(iter(times.values()))
    for name, seconds in times.items():
        print(f"| {name:28} | {seconds * 1e6:10,.0f} µs | {seconds / base:6.2f} |", flush=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)


def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        numba_cpu.configure(Path(folder))
        numba_cpu.warm()
        data = tables()
        ways: dict[str, Callable[[list[Array]], Any]] = {"lookup": kernel_way(numba_cpu, data, options.threads)}
        ways |= dict(torch_ways(data, options.threads))
        ways["NumPy take, add.reduceat"] = numpy_way(data)
        ways["lookup in NumPy"] = kernel_way(reference, data, 1)
        show(f"{options.threads} threads, {sum(BAGS) * BATCH:,} rows", measure(ways, options.rounds))
