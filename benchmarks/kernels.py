"""The CPU kernel beside the runtimes that have the operator, on the same GatherND work, in the same run.

    python -m benchmarks.kernels [--seconds 0.3] [--lines REGEX] [--threads 2]

Runs under any interpreter that has numpy, numba and ml_dtypes, and takes along those of onnxruntime (with onnx),
openvino, torch and tensorflow that it can import. All contenders take turns on each line, so that a busy moment of the
machine falls on all of them; a figure is the median of their turns, in microseconds.

`gathernd` is the route that the service would take, into an output buffer that is reused, `fresh` the same with a new
one each time. What the others are spared: openvino and tensorflow get indices that are normalised beforehand, for they
take no negative ones, and they check none; openvino reuses its output. The floor is a copy of the output's bytes into
a warm destination by all threads, or by one where that is faster. A result that is not NumPy's is marked `!` and
does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import os
import re
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, prod
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.dispatch.calibrate import calibrated
from app.dispatch.cost import Chooser
from app.dispatch.pool import Pool
from app.dispatch.split import run_split
from app.kernels import numba_cpu
from app.spec.plan import GatherPlan

CARRIERS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
_TURNS = 5
_PAUSE = 0.01
Call = Callable[[], Any]


@dataclass(frozen=True)
class Line:
    """A piece of work by the shapes of its inputs; `clustered` work reads neighbouring slices one after another."""

    name: str
    data: tuple[int, ...]
    indices: tuple[int, ...]
    batch_dims: int = 0
    dtype: str = "float32"
    clustered: bool = False

    @property
    def plan(self) -> GatherPlan:
        b, k = self.batch_dims, self.indices[-1]
        size = np.dtype(self.dtype).itemsize
        return GatherPlan(
            prod(self.data[:b]),
            prod(self.indices[b:-1]),
            self.data[b : b + k],
            prod(self.data[b + k :]),
            size,
            False,
            True,
        )


LINES = (
    Line("2 tuples of 2x2", (2, 2), (2, 2)),
    Line("1M tuples of 3, 256x256x64", (256, 256, 64), (1_000_000, 3)),
    Line("4M tuples of 2, 8192x8192 float16", (8192, 8192), (4_000_000, 2), 0, "float16"),
    Line("1M tuples of 2, 4096x4096 int8", (4096, 4096), (1_000_000, 2), 0, "int8"),
    Line("100k rows of 64", (1_000_000, 64), (100_000, 1)),
    Line("10k rows of 4096", (10_000, 4096), (10_000, 1)),
    Line("64 batches of 500 rows of 128", (64, 1000, 128), (64, 500, 1), 1),
    Line("3125 rows of 15, depth 3", (1000, 256, 10, 15), (25, 125, 3)),
    Line("4096 batches of one row of 320", (1, 64, 64, 320), (1, 64, 64, 1, 1), 3),
    Line("256 rows of 64 from 200k", (200_000, 64), (256, 1)),
    Line("depth 1, 300k from 4M", (4_194_304,), (300_000, 1)),
    Line("depth 2, 300k from 4M", (2048, 2048), (300_000, 2)),
    Line("depth 4, 300k from 4M", (64, 32, 64, 32), (300_000, 4)),
    Line("depth 5, 300k from 4M", (16, 16, 32, 16, 32), (300_000, 5)),
    Line("rows of 1 KiB", (50_000, 256), (10_000, 1)),
    Line("rows of 4 KiB", (20_000, 1024), (4_000, 1)),
    Line("rows of 64 KiB", (2_000, 16_384), (500, 1)),
    Line("rows of 6 bytes, float16", (1_000_000, 3), (200_000, 1), 0, "float16"),
    Line("rows of 48 bytes", (1_000_000, 12), (200_000, 1)),
    Line("int8 items", (16_777_216,), (300_000, 1), 0, "int8"),
    Line("float16 items", (16_777_216,), (300_000, 1), 0, "float16"),
    Line("float64 items", (8_388_608,), (300_000, 1), 0, "float64"),
    Line("complex128 items", (4_194_304,), (300_000, 1), 0, "complex128"),
    Line("batch_dims 1, 1000 x 100 items", (1000, 4096), (1000, 100, 1), 1),
    Line("batch_dims 2, 64x64 x 25 pairs", (64, 64, 32, 32), (64, 64, 25, 2), 2),
    Line("batch_dims 3, 32^3 x 4 items", (32, 32, 32, 64), (32, 32, 32, 4, 1), 3),
    Line("1M clustered of 16M", (16_777_216,), (1_000_000, 1), 0, "float32", True),
    Line("100k clustered rows of 64", (1_000_000, 64), (100_000, 1), 0, "float32", True),
    Line("1 item", (1_000_000,), (1, 1)),
    Line("10 items", (1_000_000,), (10, 1)),
    Line("100 items", (1_000_000,), (100, 1)),
    Line("1000 items", (1_000_000,), (1_000, 1)),
    Line("10^4 items", (1_000_000,), (10_000, 1)),
    Line("10^5 items", (1_000_000,), (100_000, 1)),
    Line("10^7 items", (16_777_216,), (10_000_000, 1)),
)


def make_inputs(line: Line) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Random data, and indices of which half are negative, save where they are clustered."""
    source = np.random.default_rng(0)
    data = source.integers(0, 100, line.data, np.uint8).astype(line.dtype)
    sizes = line.data[line.batch_dims : line.batch_dims + line.indices[-1]]
    columns = [source.integers(0 if line.clustered else -size, size, line.indices[:-1]) for size in sizes]
    if line.clustered:
        columns = [np.sort(column, axis=-1) for column in columns]
    return data, np.stack(columns, axis=-1)


def normalised(line: Line, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same indices without negative ones."""
    sizes = np.array(line.data[line.batch_dims : line.batch_dims + line.indices[-1]])
    return np.where(indices < 0, indices + sizes, indices)


def with_batches(line: Line, columns: list[Any], arange: Callable[[int], Any]) -> tuple[Any, ...]:
    """The index of fancy indexing: coordinates of the batches, then those of the tuples."""
    rank = len(line.indices) - 1
    places = [
        arange(size).reshape([-1 if axis == own else 1 for axis in range(rank)])
        for own, size in enumerate(line.data[: line.batch_dims])
    ]
    return (*places, *columns)


def numpy_call(line: Line, data: NDArray[Any], indices: NDArray[np.int64]) -> Call:
    def call() -> Any:
        return data[with_batches(line, list(np.moveaxis(indices, -1, 0)), np.arange)]

    return call


def onnxruntime_call(line: Line, data: NDArray[Any], indices: NDArray[np.int64], threads: int) -> Call:
    onnx, runtime = importlib.import_module("onnx"), importlib.import_module("onnxruntime")
    helper = onnx.helper
    kind = helper.np_dtype_to_tensor_dtype(data.dtype)
    graph = helper.make_graph(
        [helper.make_node("GatherND", ["data", "indices"], ["output"], batch_dims=line.batch_dims)],
        "gather",
        [
            helper.make_tensor_value_info("data", kind, list(data.shape)),
            helper.make_tensor_value_info("indices", onnx.TensorProto.INT64, list(indices.shape)),
        ],
        [helper.make_tensor_value_info("output", kind, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 9
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, {"data": data, "indices": indices})[0]


def openvino_call(line: Line, data: NDArray[Any], indices: NDArray[np.int64], threads: int) -> Call:
    openvino = importlib.import_module("openvino")
    opset = importlib.import_module("openvino.opset8")
    inputs = [opset.parameter(data.shape, data.dtype), opset.parameter(indices.shape, indices.dtype)]
    model = openvino.Model([opset.gather_nd(*inputs, line.batch_dims)], inputs)
    hints = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": str(threads)}
    request = openvino.Core().compile_model(model, "CPU", hints).create_infer_request()
    positive = normalised(line, indices)
    return lambda: request.infer([data, positive], share_inputs=True, share_outputs=True)[0]


def torch_call(line: Line, data: NDArray[Any], indices: NDArray[np.int64], threads: int) -> Call:
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    values, places = torch.from_numpy(data), torch.from_numpy(indices)
    return lambda: values[with_batches(line, list(places.unbind(-1)), torch.arange)]


def tensorflow_call(line: Line, data: NDArray[Any], indices: NDArray[np.int64], threads: int) -> Call:
    tensorflow = importlib.import_module("tensorflow")
    values, places = tensorflow.constant(data), tensorflow.constant(normalised(line, indices))
    return lambda: tensorflow.gather_nd(values, places, batch_dims=line.batch_dims).numpy()


PEERS = {
    "onnxruntime": onnxruntime_call,
    "openvino": openvino_call,
    "torch": torch_call,
    "tensorflow": tensorflow_call,
}


class Ours:
    """The kernel as the service runs it."""

    def __init__(self, threads: int, cache_dir: Path) -> None:
        started = perf_counter()
        numba_cpu.configure(cache_dir)
        numba_cpu.warm()
        print(f"kernel compiled in {perf_counter() - started:.2f} s")
        self._pool = Pool(threads, 8)
        self._chooser = Chooser(threads=threads, coefficients=calibrated(numba_cpu, cache_dir, threads=threads))
        self._loop = asyncio.new_event_loop()

    def calls(self, line: Line, data: NDArray[Any], indices: NDArray[np.int64]) -> tuple[str, Call, Call]:
        """The route, and the call with a buffer that is reused and with a fresh one."""
        plan = line.plan
        items: NDArray[Any] = data.reshape(-1).view(CARRIERS[plan.item_size])
        components = indices.reshape(-1)
        shape = line.indices[:-1] + line.data[line.batch_dims + line.indices[-1] :]
        kept: NDArray[Any] = np.zeros(plan.output_items, CARRIERS[plan.item_size])
        choice = self._chooser.choose(plan)
        route = choice.route

        def fill(out: NDArray[Any]) -> NDArray[Any]:
            if route == "loop":
                bad = numba_cpu.run(plan, items, components, out)
            elif route == "thread":
                bad = self._loop.run_until_complete(self._pool.run(lambda: numba_cpu.run(plan, items, components, out)))
            else:
                bad = self._loop.run_until_complete(
                    run_split(self._pool, numba_cpu, plan, items, components, out, choice.parts, lambda: None)
                )
            assert bad < 0
            return out.view(data.dtype).reshape(shape)

        return route, lambda: fill(kept), lambda: fill(np.empty(plan.output_items, CARRIERS[plan.item_size]))

    def close(self) -> None:
        self._pool.close()
        self._loop.close()


def copies(output: NDArray[Any], threads: int, executor: ThreadPoolExecutor) -> list[Call]:
    """Copies of the output's bytes by one thread and by all."""
    source = np.ascontiguousarray(output).reshape(-1)
    target = np.zeros_like(source)
    cuts = [source.size * part // threads for part in range(threads + 1)]

    def together() -> None:
        waits = [executor.submit(np.copyto, target[low:high], source[low:high]) for low, high in pairwise(cuts[1:])]
        np.copyto(target[: cuts[1]], source[: cuts[1]])
        for wait in waits:
            wait.result()

    return [lambda: np.copyto(target, source), together]


def take_turns(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """Median microseconds of each call; each gets about `seconds`, in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_TURNS):
        for name, call in calls.items():
            sleep(_PAUSE)  # the threads of some runtimes spin for a while after a call, at the next one's expense
            call()
            started = ended = perf_counter()
            while ended - started < seconds / _TURNS:
                before = ended
                call()
                ended = perf_counter()
                times[name].append(ended - before)
    return {name: median(taken) * 1e6 for name, taken in times.items()}


def measure(
    line: Line, ours: Ours, peers: list[str], options: argparse.Namespace, executor: ThreadPoolExecutor
) -> tuple[dict[str, float], str, set[str]]:
    """Microseconds of each contender, our route, and who was wrong."""
    data, indices = make_inputs(line)
    expected = numpy_call(line, data, indices)()
    route, kept, fresh = ours.calls(line, data, indices)
    calls = {"gathernd": kept, "fresh": fresh, "numpy": numpy_call(line, data, indices)}
    for name in peers:
        try:
            calls[name] = PEERS[name](line, data, indices, options.threads)
            calls[name]()
        except Exception as error:  # noqa: BLE001  (a peer lacks the type, in an error class of its own)
            calls.pop(name, None)
            print(f"    {name} cannot: {type(error).__name__}: {str(error).strip().splitlines()[0][:90]}")
    wrong = {name for name, call in calls.items() if not np.array_equal(np.asarray(call()), expected)}
    one, together = copies(expected, options.threads, executor)
    return take_turns({**calls, "copy by one": one, "copy by all": together}, options.seconds), route, wrong


def mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, ratios)) / len(ratios))


def main() -> None:
    """Measure and print, a line at a time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="time of each contender on each line")
    parser.add_argument("--lines", default="", help="only the lines whose name matches this regular expression")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    peers = [name for name in PEERS if importlib.util.find_spec(name) is not None]
    columns = ["gathernd", "fresh", "numpy", *peers]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.threads) as executor:
        ours = Ours(options.threads, Path(folder))
        print(
            f"{'work':34}{'route':>7}" + "".join(f"{name:>12}" for name in [*columns, "floor", "peer/us", "us/floor"])
        )
        against_peers, against_floor = [], []
        for line in LINES:
            if not re.search(options.lines, line.name):
                continue
            times, route, wrong = measure(line, ours, peers, options, executor)
            best = min(times[name] for name in ("numpy", *peers) if name in times and name not in wrong)
            floor = min(times["copy by one"], times["copy by all"])
            against_peers.append(best / times["gathernd"])
            against_floor.append(times["gathernd"] / floor)
            shown = [f"{times[name]:.1f}{'!' * (name in wrong)}" if name in times else "-" for name in columns]
            shown += [f"{floor:.1f}", f"{against_peers[-1]:.2f}", f"{against_floor[-1]:.2f}"]
            print(f"{line.name:34}{route:>7}" + "".join(f"{text:>12}" for text in shown), flush=True)
        ours.close()
    print(
        f"geometric means: best peer / gathernd {mean(against_peers):.2f}, gathernd / floor {mean(against_floor):.2f}"
    )


if __name__ == "__main__":
    main()
