"""What the GPU kernel is worth, on a machine with an NVIDIA GPU: is it right, how fast is it, and from which size on?

    pip install --require-hashes -r requirements/gpu.lock    (CuPy, CUDA's libraries; the machine has the driver)
    python -m benchmarks.gpu [--only check,kernel,crossover,http] [--cases N] [--seed S] [--json FILE]

1. check: random gathers, valid and invalid, against NumPy's kernel; every one must be equal. Half of them have little
   pinned memory, so that outputs come back by copies, in pieces.
2. kernel: data, indices and output on the device, beside what is installed of torch.index_select, torch's advanced
   indexing, cupy.take and JAX; each line with its bytes a second as a share of what a copy on the device reaches. All
   get the same tuples, several components through advanced indexing. Batches, and indices that count from the end, come
   to the others as numbers of rows.
3. crossover: whole gathers from NumPy array to NumPy array, CPU against GPU, data inline and resident.
4. http: lookups in a resident tensor through the service, on the CPU, on the GPU, and where the service sees fit.

Memory errors are sought by NVIDIA's tool. It sees whole blocks of CuPy's pool and of pinned memory, not the arrays in
them: those are between guard pages in the tests, on the CPU.

    compute-sanitizer --tool memcheck --error-exitcode 1 python -m benchmarks.gpu --only check --cases 2000
    compute-sanitizer --tool initcheck --check-api-memory-access no --error-exitcode 1 \\
        python -m benchmarks.gpu --only check --cases 500   (a copy may take along what nothing has written)

Exit codes: 0, 1 where a result is wrong, 2 where there is no GPU to measure.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPConnection
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.kernels import numba_cpu, reference
from app.kernels.gpu_interface import Device, NoDevice
from app.operators.gather_plan import GatherPlan
from benchmarks import common
from benchmarks.peers.on_gpu import CARRIERS, OnDevice, random_indices

PARTS: Final = ("check", "kernel", "crossover", "http")
_MOST_BYTES: Final = 2 << 30


class Line(NamedTuple):
    """One piece of work: slices of `width` bytes from data of `dims`."""

    name: str
    plan: GatherPlan


def lines() -> list[Line]:
    """Rows of 4 bytes to 64 KiB, tuples of 1 to 5 components, batches, shared indices, and small work."""
    found = []
    for width in (4, 16, 64, 256, 512, 1024, 4096, 16384, 65536):
        rows, count = min(1 << 30, 10_000_000 * width) // width, max(1000, min(4_000_000, (1 << 29) // width))
        found.append(Line(f"{count} rows of {width} B", GatherPlan(1, count, (rows,), width // 4, 4, False, True)))
    for depth, dims in ((2, (8192, 8192)), (3, (400, 400, 400)), (5, (30, 30, 30, 30, 30))):
        found.append(Line(f"4000000 tuples of {depth}, 2 B", GatherPlan(1, 4_000_000, dims, 1, 2, False, True)))
    found += [
        Line("odd rows: 1000000 of 520 B", GatherPlan(1, 1_000_000, (1_000_000,), 65, 8, False, True)),
        Line("odd rows: 500000 of 1004 B", GatherPlan(1, 500_000, (500_000,), 251, 4, False, True)),
        Line("odd rows: 500000 of 1001 B", GatherPlan(1, 500_000, (500_000,), 1001, 1, False, True)),
        Line("odd rows: 4000000 of 100 B", GatherPlan(1, 4_000_000, (4_000_000,), 25, 4, False, True)),
        Line("64 batches of 5000 rows of 512 B", GatherPlan(64, 5000, (10_000,), 128, 4, False, True)),
        Line("axis 1: 512 times the same 2000 rows of 256 B", GatherPlan(512, 2000, (4000,), 64, 4, True, True)),
        Line("100 rows of 256 B", GatherPlan(1, 100, (200_000,), 64, 4, False, True)),
        Line("2 by 2", GatherPlan(1, 2, (2, 2), 1, 4, False, True)),
    ]  # fmt: skip
    return found


def random_plan(source: random.Random) -> GatherPlan:
    """Mostly small ones of every kind, some with rows of several KiB, some with nothing in an axis."""
    dims = tuple(source.randint(1, 6) for _ in range(source.randint(1, 6)))
    width = source.choice((1, 2, 3, 4, 7, 8, 16, 33, source.randint(1, 3000)))
    batches, tuples = source.randint(1, 9), source.choice((1, 2, 5, source.randint(1, 3000)))
    if source.random() < 0.05:
        dims = (*dims[1:], 0)
    item = source.choice(tuple(CARRIERS))
    return GatherPlan(batches, tuples, dims, width, item, source.random() < 0.3, source.random() < 0.7)


def check(devices: Sequence[Device], cases: int, seed: int) -> int:
    """How many of `cases` random gathers differ from NumPy's kernel, on the devices by turns; the first are printed."""
    source = random.Random(seed)
    wrong = 0
    for number in range(cases):
        plan = random_plan(source)
        while (plan.data_items + plan.output_items) * plan.item_size > 1 << 22:
            plan = random_plan(source)
        carrier = CARRIERS[plan.item_size]
        data: NDArray[Any] = np.frombuffer(source.randbytes(plan.data_items * plan.item_size), carrier)
        indices = random_indices(plan, source, source.choice((0, 0, 1, 3)))
        outputs: list[NDArray[Any]] = [np.zeros(plan.output_items, carrier) for _ in range(2)]
        expected = reference.run(plan, data, indices, outputs[0])
        device = devices[number // 2 % len(devices)]
        given = device.upload(data) if number % 2 else data
        found = device.run(plan, given, indices, outputs[1])
        if found != expected or (expected < 0 and outputs[0].tobytes() != outputs[1].tobytes()):
            wrong += 1
            if wrong <= 10:
                print(f"case {number} of seed {seed} is wrong: {plan}, first bad {found}, expected {expected}")
    return wrong


def crossover(
    device: Device, widths: tuple[int, ...], counts: tuple[int, ...], data_bytes: int, seconds: float = 0.2
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Microseconds by number of rows on the CPU and on the GPU, data inline and resident, for each width of a row."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    source = random.Random(1)
    for width in widths:
        rows = data_bytes // width
        data = np.random.default_rng(width).integers(0, 255, rows * width, np.uint8)
        copy = device.upload(data)
        series: dict[str, list[tuple[float, float]]] = {"CPU": [], "GPU inline": [], "GPU resident": []}
        for count in counts:
            plan = GatherPlan(1, count, (rows,), width, 1, False, True)
            indices = random_indices(plan, source)
            out = np.zeros(plan.output_items, np.uint8)
            ways: Mapping[str, Callable[[], int]] = {
                "CPU": lambda: numba_cpu.run(plan, data, indices, out),  # noqa: B023  (called at once)
                "GPU inline": lambda: device.run(plan, data, indices, out),  # noqa: B023
                "GPU resident": lambda: device.run(plan, copy, indices, out),  # noqa: B023
            }
            for name, call in ways.items():
                series[name].append((count, best(call, seconds) * 1e6))
        found[f"rows of {width} B from {data_bytes >> 20} MiB"] = series
    return found


def best(call: Callable[[], Any], seconds: float) -> float:
    """Seconds of the shortest of several calls, after one that does not count."""
    call()
    shortest, end = float("inf"), perf_counter() + seconds
    while True:
        started = perf_counter()
        call()
        now = perf_counter()
        shortest = min(shortest, now - started)
        if now > end:
            return shortest


def first_faster(series: Mapping[str, list[tuple[float, float]]], way: str) -> str:
    """From which number of rows on a way is ahead of the CPU, up to the largest that was measured."""
    from_here = None
    for (count, here), (_, there) in zip(series["CPU"], series[way], strict=True):
        if there >= here:
            from_here = None
        elif from_here is None:
            from_here = count
    return "never" if from_here is None else f"{from_here:.0f} rows"


def kernel(device: Any) -> tuple[dict[str, Any], int]:
    """Every line on the device: a table printed, its figures, and how many results were wrong."""
    bench = OnDevice(device)
    copies = bench.copy_bandwidth()
    print(f"a copy on the device: {copies * 1e-9:.0f} GB/s, read and written")
    figures: dict[str, Any] = {"copy bytes/s": copies}
    wrong = 0
    for name, plan in lines():
        if plan.data_items * plan.item_size > _MOST_BYTES:
            continue
        moved = 2 * plan.output_bytes + 8 * plan.index_items
        ways: dict[str, float] = {}
        bad: list[str] = []
        ours_is: Any = None
        for way, seconds, output in bench.ways(plan):
            ways[way] = seconds
            octets = None if output is None else output.reshape(-1).view(np.uint8)
            ours_is = octets if way == "gathernd" else ours_is
            if octets is None or ours_is is None or not bench.cupy.array_equal(octets, ours_is):
                bad.append(way)
        wrong += bool(bad)
        ours = ways["gathernd"]
        peers = {way: seconds for way, seconds in ways.items() if way != "gathernd"}
        share = moved / ours / copies
        beside = "  ".join(f"{way} {seconds * 1e6:.1f} µs ×{seconds / ours:.2f}" for way, seconds in peers.items())
        print(f"{name:48}{ours * 1e6:12.1f} µs {share:6.0%} of the copy   {beside}{'  WRONG ' * bool(bad)}")
        figures[name] = {"share": share, **ways}
    return figures, wrong


def http(seconds: float) -> dict[str, Any]:
    """Lookups of 4096 rows of 512 bytes in a resident tensor of 512 MiB, by wrk; binary in and out."""
    rows, width = 1 << 20, 128
    table = np.random.default_rng(1).random((rows, width), dtype=np.float32)
    safetensors = import_module("safetensors.numpy")
    figures: dict[str, Any] = {}
    for count in (1, 64, 4096):
        body = safetensors.save({"indices": np.random.default_rng(2).integers(0, rows, (count, 1))})
        headers = {"Content-Type": "application/x-safetensors"}
        rows_of_table: dict[str, common.Figures] = {}
        for way in ("cpu", "gpu", "auto"):
            with common.serving(common.gathernd_command, environ={"GATHERND_DEVICE": way}, limit=180) as port:
                connection = HTTPConnection("127.0.0.1", port, timeout=120)
                path = f"/tensors/table?dtype=float32&shape={rows},{width}"
                connection.request("PUT", path, table.tobytes(), {"Content-Type": "application/octet-stream"})
                assert connection.getresponse().status == 201
                request = common.Request(f"/gathernd?tensor=table&device={way}", body, headers)
                rows_of_table[way] = common.wrk(port, request, seconds=seconds)
        print(common.table(f"{count} rows of 512 B from 512 MiB", rows_of_table, ["cpu"]))
        figures[f"{count} rows"] = {way: found.rate for way, found in rows_of_table.items()}
    return figures


def open_device(**options: int) -> Any:
    """The GPU, with options of `CupyDevice`. Raises NoDevice where there is none or CuPy is not installed."""
    try:
        module = import_module("app.kernels.cupy_gpu.device")
    except ImportError as error:
        raise NoDevice(f"CuPy cannot be imported ({error}): install requirements/gpu.lock") from None
    return module.CupyDevice(**options)


def main(arguments: list[str] | None = None) -> int:
    """Run the parts that are asked for; the exit code."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS), help="which parts, comma-separated")
    parser.add_argument("--cases", type=int, default=20_000, help="random gathers of the check")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5, help="of load for each figure of http")
    parser.add_argument("--json", type=Path, help="file for all figures")
    asked = parser.parse_args(arguments)
    parts = asked.only.split(",")
    if not set(parts) <= set(PARTS):
        parser.error(f"--only takes {', '.join(PARTS)}")
    try:
        device = open_device()
    except NoDevice as reason:
        print(f"nothing is measured: {reason}", file=sys.stderr)
        return 2
    print(f"{device.description}; {common.machine_line()}")
    figures: dict[str, Any] = {"device": device.description, "machine": common.machine_line()}
    wrong = 0
    if "check" in parts:
        wrong += check([device, open_device(stage_bytes=4096)], asked.cases, asked.seed)
        print(f"check: {asked.cases} gathers, {wrong} wrong")
    if "kernel" in parts:
        figures["kernel"], more = kernel(device)
        wrong += more
    if "crossover" in parts:
        with tempfile.TemporaryDirectory() as folder:
            numba_cpu.configure(Path(folder))
            numba_cpu.warm()
        measured = crossover(device, (4, 256, 4096), (1, 10, 100, 1000, 10_000, 100_000), 1 << 28)
        figures["crossover"] = measured
        for name, series in measured.items():
            ahead = ", ".join(f"{way} from {first_faster(series, way)}" for way in ("GPU inline", "GPU resident"))
            print(f"{name}: ahead of one thread of the CPU: {ahead}")
    if "http" in parts:
        del device
        figures["http"] = http(asked.seconds)
    if asked.json:
        asked.json.write_text(json.dumps(figures, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
