"""Whether the service chooses the right route: a sweep of shapes, each run on every CPU route in turns.

    python -m benchmarks.selection [--shapes 240] [--seed 1] [--rounds 5] [--quiet-wait 300] [--all]

Runs `Service.gather` in process, as a request does once it has been read, with each route forced in turn, and compares
what the calibrated choice takes with what the best route takes. A shape is well chosen where that is at most 1.1 times
as long. Routes take turns, the best of several rounds counts, and each call has other indices than the one before.
Shapes are drawn from a seed: 1 to 5 indexed axes, all item sizes, slices of one item to 64 KiB, data of 1 KiB to 64
MiB, batches, Gather's shared indices, indices at random or in order, and work of a few microseconds up to some tens of
milliseconds.

A split over two cores gains nothing while another process has one of them. So what is measured while others take more
than a little of the machine is measured again, as long as `--quiet-wait` seconds of that last; the report says how much
was measured beside busy neighbours in the end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from math import prod
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final, TypeVar

import numpy as np
import uvloop
from numpy.typing import NDArray

from app.dispatch.backend_calibration import calibrated
from app.dispatch.backend_cost_model import Coefficients
from app.dispatch.choose_backend import BackendChooser, Facts, PredictedRoute, Route, has_locality
from app.dispatch.request_thread_pool import RequestThreadPool
from app.kernels import numba_cpu
from app.memory.budget import Budget, MemoryReservation
from app.memory.malloc_tuning import keep_freed_memory
from app.operators.gather_plan import Plan
from app.operators.registry import OPERATORS
from app.services.service import Service
from app.store import EmptyStore
from app.telemetry.server_timing import RequestTimings
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call
from app.tensors.operator_signature import OperatorName
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from benchmarks.common import machine_line

Result = TypeVar("Result")
CPU_ROUTES: Final[tuple[Route, ...]] = ("loop", "thread", "split")
TOLERANCE: Final = 1.1
_BY_SIZE: Final = {1: "int8", 2: "float16", 4: "float32", 8: "int64", 16: "complex128"}
_MOST_OUTPUT: Final = 64 << 20
_MOST_DATA: Final = 64 << 20
_TURN_S: Final = 0.002
_GROUP: Final = 8
_DISTURBED: Final = 0.05
_TICK_S: Final = 0.03
_PAUSE_S: Final = 0.2
_VARIANTS: Final = 16
_VARIANT_ITEMS: Final = 1 << 20


@dataclass(frozen=True)
class Shape:
    """One gather of the sweep."""

    operator: OperatorName
    dtype: str
    data: tuple[int, ...]
    indices: tuple[int, ...]
    parameter: int
    ordered: bool

    def __str__(self) -> str:
        name = OPERATORS[self.operator].signature.parameters[0].name
        order = "ordered" if self.ordered else "random"
        return f"{self.operator} {self.dtype} {list(self.data)} by {list(self.indices)} {name}={self.parameter} {order}"


def shapes(count: int, seed: int) -> Iterator[Shape]:
    """`count` shapes, the same for the same seed."""
    source = random.Random(seed)
    while count:
        found = _draw(source)
        if found is not None:
            count -= 1
            yield found


def _draw(source: random.Random) -> Shape | None:
    item = source.choice((1, 2, 4, 8, 16))
    width = int(2 ** source.uniform(0, 16)) // item or 1  # items of a slice
    if source.random() < 0.3:
        width = 1
    depth = source.choice((1, 1, 1, 2, 3, 4, 5))
    rows = int(2 ** source.uniform(10, 26)) // (item * width) or 1
    side = max(1, round(rows ** (1 / depth)))
    dims = (side,) * (depth - 1) + (max(1, rows // side ** (depth - 1)),)
    operator: OperatorName = "gather" if source.random() < 0.15 else "gathernd"
    batches: tuple[int, ...] = ()
    if source.random() < 0.3:
        batches = tuple(source.choice((2, 3, 8, 30)) for _ in range(source.choice((1, 1, 2))))
    slices = int(2 ** source.uniform(0, 21))
    if operator == "gather":
        dims = (prod(dims),)
        indices: tuple[int, ...] = (max(1, slices // prod(batches)),)
    else:
        indices = (*batches, max(1, slices // prod(batches)), depth)
    data = (*batches, *dims, width)
    output = slices * width * item
    if prod(data) * item > _MOST_DATA or output > _MOST_OUTPUT:
        return None
    return Shape(operator, _BY_SIZE[item], data, indices, len(batches), source.random() < 0.25)


def make_calls(shape: Shape, octets: NDArray[np.uint8]) -> list[Call]:
    """Calls of `shape` on data from `octets`, that differ in their indices."""
    most = max(2, min(_VARIANTS, _VARIANT_ITEMS // prod(shape.indices)))
    return [_make_call(shape, octets, np.random.default_rng(number)) for number in range(most)]


def _make_call(shape: Shape, octets: NDArray[np.uint8], source: np.random.Generator) -> Call:
    dtype = DTYPES[shape.dtype]
    data = octets[: prod(shape.data) * dtype.item_size].view(dtype.numpy)
    depth = 1 if shape.operator == "gather" else shape.indices[-1]
    sizes = shape.data[shape.parameter : shape.parameter + depth]
    places = shape.indices if shape.operator == "gather" else shape.indices[:-1]
    columns = [source.integers(0 if shape.ordered else -size, size, places) for size in sizes]
    if shape.ordered:
        columns = [np.sort(column, axis=-1) for column in columns]
    flat = np.stack(columns, axis=-1).reshape(-1)
    return Call(
        shape.operator,
        Tensor(dtype, shape.data, data),
        Tensor(DTYPES["int64"], shape.indices, flat),
        (shape.parameter,),
        "onnx-13",
    )


async def _turn(service: Service, calls: Iterator[Call], budget: Budget, count: int) -> float:
    """Seconds a call, over `count` calls one after the other."""
    reservation = MemoryReservation(budget)
    started = perf_counter()
    for call in islice(calls, count):
        await service.run(call, RequestTimings(started, started + 1000), reservation)
        reservation.release()
    return (perf_counter() - started) / count


async def measure(services: Mapping[Route, Service], calls: Sequence[Call], rounds: int) -> dict[Route, float]:
    """Seconds of a call on each route: the best of `rounds` turns."""
    budget = Budget(1 << 34)
    endless = cycle(calls)
    best: dict[Route, float] = {}
    for route, service in services.items():
        await _turn(service, endless, budget, 2)
        best[route] = await _turn(service, endless, budget, 1)
    for turn in range(rounds):
        order = list(services)
        order = order[turn % len(order) :] + order[: turn % len(order)]
        for route in order:
            count = max(1, min(100, round(_TURN_S / best[route])))
            best[route] = min(best[route], await _turn(services[route], endless, budget, count))
    return best


@dataclass
class Row:
    """What was measured and predicted for a shape."""

    shape: Shape
    plan: Plan
    seconds: dict[Route, float]
    choice: PredictedRoute

    @property
    def best(self) -> Route:
        """The route that took least."""
        return min(self.seconds, key=self.seconds.__getitem__)

    @property
    def ratio(self) -> float:
        """How many times as long as the best route the chosen one takes."""
        return self.seconds[self.choice.route] / self.seconds[self.best]


class Neighbours:
    """Notices what other processes take of the machine's time (Linux)."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.disturbed = 0

    async def without(self, work: Callable[[], Awaitable[Result]]) -> Result:
        """`work` done while others take less than `_DISTURBED` of the machine, or once the waiting time is used up."""
        while True:
            started, busy, own = perf_counter(), _busy_seconds(), process_time()
            result = await work()
            took = perf_counter() - started
            others = _busy_seconds() - busy - (process_time() - own)
            if others <= max(_DISTURBED * took * (os.cpu_count() or 1), _TICK_S):
                return result
            if self.wait_s <= 0:
                self.disturbed += 1
                return result
            await asyncio.sleep(_PAUSE_S)
            self.wait_s -= took + _PAUSE_S


def _busy_seconds() -> float:
    """Seconds that all processors together have been busy."""
    user, nice, system, _, _, irq, soft, steal = map(int, Path("/proc/stat").read_text().split(None, 9)[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


async def sweep(
    drawn: Sequence[Shape], rounds: int, threads: int, neighbours: Neighbours, cache_dir: Path
) -> tuple[list[Row], Coefficients]:
    """Every shape on every route, and the choice for each by a calibration that is left in `cache_dir`."""
    octets = np.random.default_rng(0).integers(0, 2, _MOST_DATA, np.uint8)
    measure_anew = partial(calibrated, numba_cpu, cache_dir, threads=threads, refresh=True)
    coefficients = await neighbours.without(lambda: asyncio.to_thread(measure_anew))
    pool = RequestThreadPool(threads, 64)
    rows: list[Row] = []
    for start in range(0, len(drawn), _GROUP):
        group = []
        for shape in drawn[start : start + _GROUP]:
            calls = make_calls(shape, octets)
            group.append((calls, *_services(calls[0], pool, coefficients)))

        async def measure_group(group: Any = group) -> list[dict[Route, float]]:
            return [await measure(services, calls, rounds) for calls, _, _, services in group]

        measured = await neighbours.without(measure_group)
        rows += [
            Row(shape, plan, seconds, choice)
            for shape, (_, plan, choice, _), seconds in zip(drawn[start:], group, measured, strict=False)
        ]
        print(f"{len(rows)} of {len(drawn)}", file=sys.stderr, flush=True)
    pool.close()
    return rows, coefficients


def _services(
    call: Call, pool: RequestThreadPool, coefficients: Coefficients
) -> tuple[Plan, PredictedRoute, dict[Route, Service]]:
    """The plan of a call, the choice for it, and a service for each route that it can take."""
    found: dict[Route, Service] = {}
    plan = None
    for route in CPU_ROUTES:
        chooser = BackendChooser(threads=pool.threads, force_route=route, coefficients=coefficients)
        service = Service(Limits(), EmptyStore(), numba_cpu, pool, chooser, Budget(1 << 34))
        assert isinstance(call.data, Tensor)
        planned = service.planner.plan(call, call.data, service.chooser)
        plan = planned.plan
        if planned.usual.choice.route == route:
            found[route] = service
    assert plan is not None
    chooser = BackendChooser(threads=pool.threads, coefficients=coefficients)
    facts = Facts(locality=has_locality(plan, call.indices.array))
    return plan, chooser.decide(plan, facts).choice, found


def report(rows: Sequence[Row], every: bool) -> str:
    """The table: badly chosen shapes, or all of them, and the percentage."""
    lines = [
        f"{'chosen':>7} {'best':>7} {'ratio':>6} {'loop µs':>10} {'thread µs':>10} {'split µs':>10} {'predicted':>10}"
    ]
    for row in sorted(rows, key=lambda row: -row.ratio):
        if every or row.ratio > TOLERANCE:
            figures = [
                f"{row.seconds[route] * 1e6:10.1f}" if route in row.seconds else " " * 10 for route in CPU_ROUTES
            ]
            predicted = f"{row.choice.seconds * 1e6:10.1f}"
            shown = (f"{row.choice.route:>7}", f"{row.best:>7}", f"{row.ratio:6.2f}", *figures, predicted)
            lines.append(" ".join((*shown, str(row.shape))))
    good = sum(row.ratio <= TOLERANCE for row in rows)
    counts = {route: sum(row.choice.route == route for row in rows) for route in CPU_ROUTES}
    lines.append(f"chosen: {', '.join(f'{route} {count}' for route, count in counts.items())}")
    for quantile in (0.5, 0.9, 0.95, 1.0):
        at = sorted(row.ratio for row in rows)[max(0, round(quantile * len(rows)) - 1)]
        lines.append(f"{quantile:.0%} of the choices take at most {at:.2f} times the best route")
    lines.append(f"within {TOLERANCE - 1:.0%} of the best route: {good} of {len(rows)} shapes, {good / len(rows):.1%}")
    return "\n".join(lines)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=240)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each route")
    parser.add_argument("--quiet-wait", type=float, default=300, help="seconds to wait for a quiet machine, all in all")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--all", action="store_true", help="print every shape, not only those chosen badly")
    arguments = parser.parse_args()
    keep_freed_memory(1 << 28)  # as the service does
    with tempfile.TemporaryDirectory(prefix="gathernd-bench-") as folder:
        numba_cpu.configure(Path(folder))
        numba_cpu.warm()
        drawn = list(shapes(arguments.shapes, arguments.seed))
        neighbours = Neighbours(arguments.quiet_wait)
        rows, coefficients = uvloop.run(sweep(drawn, arguments.rounds, arguments.threads, neighbours, Path(folder)))
    print(machine_line())
    print(coefficients)
    print(report(rows, arguments.all))
    print(f"groups of shapes measured beside busy neighbours: {neighbours.disturbed}")


if __name__ == "__main__":
    main()
