"""Gathers whose data and output lie on a GPU: our kernel, CuPy, PyTorch and JAX."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from importlib import import_module
from math import prod
from time import perf_counter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.operators.gather_plan import GatherPlan

CARRIERS: Final = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


def random_indices(plan: GatherPlan, source: random.Random, bad: int = 0) -> NDArray[np.int64]:
    """Good components, but for `bad` of them."""
    generator = np.random.default_rng(source.randrange(1 << 32))
    rows = plan.index_items // plan.depth
    columns = [generator.integers(-size if plan.wrap else 0, size, rows) if size else np.zeros(rows, np.int64)
               for size in plan.dims]  # fmt: skip
    indices: NDArray[np.int64] = np.stack(columns, axis=-1).reshape(-1)
    for _ in range(bad if indices.size else 0):
        place = source.randrange(indices.size)
        size = plan.dims[place % plan.depth]
        indices[place] = source.choice((size, -size - 1, 2**62, -(2**63), 2**63 - 1, 2**32))
    return indices


class OnDevice:
    """Times work whose inputs and output lie on the device: many launches, then a wait."""

    def __init__(self, device: Any) -> None:
        self.cupy = import_module("cupy")
        self.device = device

    def per_call(self, call: Callable[[], Any], wait: Callable[[], Any]) -> float:
        """Seconds of a call, as many together as take a twentieth of a second; the best of five."""
        call()
        wait()
        count = 1
        while True:
            started = perf_counter()
            for _ in range(count):
                call()
            wait()
            taken = perf_counter() - started
            if taken > 0.05 or count >= 1 << 16:
                break
            count *= 2
        times = [taken]
        for _ in range(4):
            started = perf_counter()
            for _ in range(count):
                call()
            wait()
            times.append(perf_counter() - started)
        return min(times) / count

    def copy_bandwidth(self) -> float:
        """Bytes read and written a second by a copy of 1 GiB within the device."""
        cupy = self.cupy
        size = 1 << 30
        source = cupy.zeros(size, cupy.uint8)
        target = cupy.empty_like(source)
        return 2 * size / self.per_call(lambda: cupy.copyto(target, source), cupy.cuda.Device().synchronize)

    def ways(self, plan: GatherPlan) -> Iterator[tuple[str, float, Any]]:
        """Each way's name, its seconds, and its output on the device, None where a tuple is bad; ours is the first."""
        cupy, carrier = self.cupy, CARRIERS[plan.item_size]
        data = cupy.random.default_rng(1).integers(0, 255, plan.data_items * plan.item_size, dtype=cupy.uint8)
        data = data.view(carrier)
        indices = random_indices(plan, random.Random(1))
        there = cupy.asarray(indices)
        out = cupy.full(plan.output_items, 7, carrier)
        first = cupy.full(1, -1, cupy.int64)
        wait = cupy.cuda.Device().synchronize
        addresses = (data.data.ptr, there.data.ptr, out.data.ptr, first.data.ptr)
        seconds = self.per_call(lambda: self.device.start(plan, 8, addresses, cupy.cuda.Stream.null.ptr), wait)
        yield "gathernd", seconds, out if int(first[0]) == -1 else None
        if plan.depth > 1:
            yield from self._tuples(data.reshape(*plan.dims, -1), there.reshape(-1, plan.depth))
            return
        flat = flattened(plan, indices)
        table, rows = data.reshape(-1, plan.slice_items), cupy.asarray(flat)
        taken = cupy.empty((len(flat), plan.slice_items), carrier)
        seconds = self.per_call(lambda: cupy.take(table, rows, axis=0, out=taken), wait)
        yield "cupy.take", seconds, taken
        yield from self._torch(table, rows)
        yield from self._jax(table, rows)

    def _tuples(self, data: Any, tuples: Any) -> Iterator[tuple[str, float, Any]]:
        """Advanced indexing by the columns of `tuples`."""
        cupy = self.cupy
        columns = tuple(tuples.T)
        wait = cupy.cuda.Device().synchronize
        seconds = self.per_call(lambda: data[columns], wait)
        yield "cupy indexing", seconds, data[columns]
        if torch := installed("torch"):
            there, index = torch_view(torch, data), tuple(torch.from_dlpack(column) for column in columns)
            seconds = self.per_call(lambda: there[index], torch.cuda.synchronize)
            yield "torch indexing", seconds, cupy.from_dlpack(there[index])
        if jax := installed_jax():
            held, by = jax.dlpack.from_dlpack(data), jax.dlpack.from_dlpack(tuples)
            take = jax.jit(lambda data, by: data.at[tuple(by.T)].get(mode="clip"))
            last: list[Any] = [None]

            def call() -> None:
                last[0] = take(held, by)

            seconds = self.per_call(call, lambda: jax.block_until_ready(last[0]))
            yield "jax indexing", seconds, cupy.from_dlpack(last[0])

    def _torch(self, table: Any, rows: Any) -> Iterator[tuple[str, float, Any]]:
        torch = installed("torch")
        if torch is None:
            return
        data = torch_view(torch, table)
        index = torch.from_dlpack(rows)
        out = torch.empty((len(rows), table.shape[1]), dtype=data.dtype, device="cuda")
        wait = torch.cuda.synchronize
        seconds = self.per_call(lambda: torch.index_select(data, 0, index, out=out), wait)
        yield "torch.index_select", seconds, self.cupy.from_dlpack(out)
        seconds = self.per_call(lambda: data[index], wait)
        yield "torch indexing", seconds, self.cupy.from_dlpack(data[index])

    def _jax(self, table: Any, rows: Any) -> Iterator[tuple[str, float, Any]]:
        jax = installed_jax()
        if jax is None:
            return
        data, index = jax.dlpack.from_dlpack(table), jax.dlpack.from_dlpack(rows)
        take = jax.jit(lambda data, index: jax.numpy.take(data, index, axis=0, mode="clip"))
        last: list[Any] = [None]

        def call() -> None:
            last[0] = take(data, index)

        seconds = self.per_call(call, lambda: jax.block_until_ready(last[0]))
        yield "jax.numpy.take", seconds, self.cupy.from_dlpack(last[0])


def installed(name: str) -> Any:
    """The module, or None."""
    try:
        return import_module(name)
    except ImportError:
        return None


def installed_jax() -> Any:
    """JAX with 64 bits on the GPU, or None. It leaves the others their memory."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = installed("jax")
    if jax is not None:
        jax.config.update("jax_enable_x64", True)
    return jax if jax is not None and jax.default_backend() == "gpu" else None


def torch_view(torch: Any, data: Any) -> Any:
    """An array on the device as a tensor of PyTorch, which lacks most unsigned types."""
    signed = {1: "int8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}[data.itemsize]
    return torch.from_dlpack(data.view(signed))


def flattened(plan: GatherPlan, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number of the row that each output row is, which other libraries take."""
    tuples = indices.reshape(-1, plan.depth)
    flat = np.zeros(len(tuples), np.int64)
    for axis, size in enumerate(plan.dims):
        flat = flat * size + np.where(tuples[:, axis] < 0, tuples[:, axis] + size, tuples[:, axis])
    block = prod(plan.dims)
    if plan.broadcast_indices:
        return (np.arange(plan.batches)[:, None] * block + flat).reshape(-1)
    return flat + np.arange(plan.batches).repeat(plan.tuples) * block
