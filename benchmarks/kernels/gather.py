"""GatherND beside NumPy, ONNX Runtime, OpenVINO, PyTorch and TensorFlow, in every way each of them has.

Times are in microseconds. `gathernd` is the kernel called and waited for, `service` the same from the service's event
loop; both write to an output that is used again, as the peers that can do. `fresh` gets a new one each time. The floor
is a copy of the output's bytes. A result that is not NumPy's is marked `!` and does not count.

A line is lost if the best peer is faster, unless its slices have 4 KiB or more and the kernel is within 0.95 of the
floor.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from inspect import iscoroutinefunction
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.dispatch.choose_backend import BackendChooser
from app.dispatch.measured_rates import machine_rates, new_event_loop
from app.dispatch.request_thread_pool import RequestThreadPool
from app.kernels import numba_cpu
from benchmarks.kernels import turns
from benchmarks.kernels.gather_lines import LINES, Line, make_inputs
from benchmarks.kernels.turns import Call, Contender, mean, shown, take_turns
from benchmarks.peers.gather_runtimes import PEERS, numpy_index

CARRIERS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}
_WIDE = 4096
_NEAR_FLOOR = 0.95


class Ours:
    """The kernel, alone and as the service runs it."""

    def __init__(self, threads: int, cache_dir: Path) -> None:
        started = perf_counter()
        numba_cpu.configure(cache_dir)
        numba_cpu.warm()
        print(f"kernel compiled in {perf_counter() - started:.2f} s")
        self._pool = RequestThreadPool(threads, 8)
        self._chooser = BackendChooser(threads=threads, rates=machine_rates(numba_cpu, cache_dir))
        self.loop = new_event_loop()

    def calls(self, line: Line, data: NDArray[Any], indices: NDArray[np.int64]) -> tuple[str, dict[str, Contender]]:
        """The route that the service would take, and the calls."""
        plan = line.plan
        carrier = CARRIERS[plan.item_size]
        items: NDArray[Any] = data.reshape(-1).view(carrier)
        components = indices.reshape(-1)
        kept: NDArray[Any] = np.empty(plan.output_items, carrier)
        kept[...] = 0
        route, parts, here = self._chooser.decide(plan).choice

        def alone(out: NDArray[Any]) -> int:
            return numba_cpu.run(plan, items, components, out, parts)

        async def served() -> NDArray[Any]:
            bad = alone(kept) if here else await self._pool.run(lambda: alone(kept))
            if bad >= 0:
                raise IndexError
            return shaped

        shaped: NDArray[Any] = kept.view(data.dtype).reshape(line.output)

        def again() -> NDArray[Any]:
            if alone(kept) >= 0:
                raise IndexError
            return shaped

        def fresh() -> NDArray[Any]:
            out: NDArray[Any] = np.empty(plan.output_items, carrier)
            if alone(out) >= 0:
                raise IndexError
            return out.view(data.dtype).reshape(line.output)

        return route, {"gathernd": again, "service": served, "fresh": fresh}

    def close(self) -> None:
        self._pool.close()
        self.loop.close()


def copies(output: NDArray[Any], threads: int, executor: ThreadPoolExecutor) -> list[Call]:
    """Copies of the output's bytes by one thread and by all."""
    source = np.ascontiguousarray(output).reshape(-1)
    target = np.empty_like(source)
    target[...] = 0
    cuts = [source.size * part // threads for part in range(threads + 1)]

    def together() -> None:
        waits = [executor.submit(np.copyto, target[low:high], source[low:high]) for low, high in pairwise(cuts[1:])]
        np.copyto(target[: cuts[1]], source[: cuts[1]])
        for wait in waits:
            wait.result()

    return [lambda: np.copyto(target, source), together]


def measure(
    line: Line, ours: Ours, peers: list[str], options: argparse.Namespace, executor: ThreadPoolExecutor
) -> tuple[dict[str, float], str, set[str]]:
    """Microseconds of each contender, our route, and who was wrong."""
    data, indices = make_inputs(line)
    expected = numpy_index(line, data, indices)
    route, own = ours.calls(line, data, indices)
    calls: list[tuple[str, Contender]] = list(own.items())
    wrong = set()
    for name in peers:
        try:
            for call in PEERS[name](line, data, indices, options.threads):
                if np.array_equal(np.asarray(call()), expected):
                    calls.append((name, call))
                else:
                    wrong.add(name)
        except Exception as error:  # noqa: BLE001  (a peer lacks the type, in an error class of its own)
            print(f"    {name} cannot: {type(error).__name__}: {str(error).strip().splitlines()[0][:90]}")
    for name, call in own.items():
        result: Any = ours.loop.run_until_complete(call()) if iscoroutinefunction(call) else call()
        if not np.array_equal(result, expected):
            raise SystemExit(f"{line.name}: {name} is wrong")
    calls += [("floor", call) for call in copies(expected, options.threads, executor)]
    return take_turns(calls, ours.loop, options.seconds, options.rounds), route, wrong


def add_options(parser: argparse.ArgumentParser) -> None:
    """The command line."""
    turns.add_options(parser, PEERS, seconds=0.25)


def run(options: argparse.Namespace) -> None:
    """Measure and print, a line at a time."""
    turns.prepare(options)
    peers = options.peers
    columns = ["gathernd", "service", "fresh", *peers]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.threads) as executor:
        ours = Ours(options.threads, Path(folder))
        heads = [*columns, "floor", "× peer", "service", "× floor"]
        print(f"{'work':38}{'route':>7}" + "".join(f"{name:>12}" for name in heads))
        over_peer, served_over_peer, over_floor, lost = [], [], [], []
        for line in LINES:
            if not re.search(options.lines, line.name):
                continue
            times, route, wrong = measure(line, ours, peers, options, executor)
            best = min(times[name] for name in peers if name in times)
            over_peer.append(best / times["gathernd"])
            served_over_peer.append(best / times["service"])
            over_floor.append(times["floor"] / times["gathernd"])
            wide = line.plan.slice_items * line.plan.item_size >= _WIDE
            if over_peer[-1] < 1 and not (wide and over_floor[-1] >= _NEAR_FLOOR):
                lost.append(line.name)
            figures = [f"{times['floor']:.1f}", f"{over_peer[-1]:.2f}", f"{served_over_peer[-1]:.2f}"]
            figures = [*shown(times, wrong, columns), *figures, f"{over_floor[-1]:.2f}"]
            print(f"{line.name:38}{route:>7}" + "".join(f"{text:>12}" for text in figures), flush=True)
        ours.close()
    print(
        f"{len(over_peer)} lines, geometric means: × best peer {mean(over_peer):.2f} "
        f"(through the service {mean(served_over_peer):.2f}), × floor {mean(over_floor):.2f}; "
        f"lost: {', '.join(lost) or 'none'}"
    )
