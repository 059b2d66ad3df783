"""How kernels and other runtimes take turns, and the table of their times.

Of each contender the median of its turns' medians counts, in microseconds.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import re
import tempfile
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Iterable
from inspect import iscoroutinefunction
from math import exp, log
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any, Final, Protocol, TypeVar

from app.dispatch.measured_rates import new_event_loop
from app.kernels import numba_cpu
from app.memory.malloc_tuning import keep_freed_memory

Call = Callable[[], Any]
Served = Callable[[], Awaitable[Any]]
Contender = Call | Served


class Line(Protocol):
    """A line of a table: some work, by its name."""

    @property
    def name(self) -> str: ...


L = TypeVar("L", bound=Line)
_PAUSE: Final = 0.01
_KEPT_BYTES: Final = 1 << 28
_DISTRIBUTIONS: Final = ("numpy", "onnxruntime", "openvino", "torch", "tensorflow-cpu", "tensorflow")


def add_options(parser: argparse.ArgumentParser, peers: Iterable[str], *, seconds: float) -> None:
    """The options of a table of kernels."""
    parser.add_argument("--seconds", type=float, default=seconds, help="time of each contender on each line")
    parser.add_argument("--rounds", type=int, default=5, help="turns, of which the median counts")
    parser.add_argument("--lines", default="", help="only the lines whose name matches this regular expression")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--peers", default=",".join(peers), help="only these")


def prepare(options: argparse.Namespace) -> None:
    """Keep the peers that can be imported, say which are left out, and keep freed memory, as the service does."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    asked = options.peers.split(",")
    options.peers = [name for name in asked if _importable(name)]
    if absent := [name for name in asked if name not in options.peers]:
        print(f"left out, since they are not installed: {', '.join(absent)}")
    keep_freed_memory(_KEPT_BYTES)
    print(_versions())


def take_turns(
    calls: list[tuple[str, Contender]], loop: AbstractEventLoop, seconds: float, rounds: int
) -> dict[str, float]:
    """Microseconds by name: the median of the rounds' medians, and the least of the calls of one name.

    Every second round goes backwards: so that nobody always comes after the same.
    """
    turns: list[list[float]] = [[] for _ in calls]
    contenders = [*zip(calls, turns, strict=True)]
    for _ in range(rounds):
        for (_, call), found in contenders:
            sleep(_PAUSE)  # the threads of some runtimes spin for a while after a call, at the next one's expense
            if iscoroutinefunction(call):
                found.append(loop.run_until_complete(_served_turn(call, seconds / rounds)))
            else:
                found.append(_turn(call, seconds / rounds))
        contenders.reverse()
    best: dict[str, float] = {}
    for (name, _), found in zip(calls, turns, strict=True):
        best[name] = min(best.get(name, float("inf")), median(found) * 1e6)
    return best


def measure_lines(
    lines: Iterable[L],
    measure: Callable[[L, list[str], argparse.Namespace, AbstractEventLoop], tuple[dict[str, float], set[str]]],
    options: argparse.Namespace,
    columns: list[str],
) -> None:
    """Print the figures of the lines that `options` asks for, and at the end how they compare with the best peers'.

    `measure` gives the microseconds of each contender on a line, and who was wrong.
    """
    print(f"{'work':48}" + "".join(f"{name:>12}" for name in [*columns, "× peer"]))
    loop = new_event_loop()
    over_peer: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        numba_cpu.configure(Path(folder))
        numba_cpu.warm()
        for line in lines:
            if not re.search(options.lines, line.name):
                continue
            times, wrong = measure(line, options.peers, options, loop)
            figures = shown(times, wrong, columns)
            beside = [times[name] for name in options.peers if name in times]
            if beside:
                over_peer[line.name] = min(beside) / times["gathernd"]
                figures.append(f"{over_peer[line.name]:.2f}")
            print(f"{line.name:48}" + "".join(f"{text:>12}" for text in figures), flush=True)
    loop.close()
    if over_peer:
        lost = ", ".join(name for name, ratio in over_peer.items() if ratio < 1) or "none"
        print(f"{len(over_peer)} lines, geometric mean × best peer {mean([*over_peer.values()]):.2f}; lost: {lost}")


def mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return exp(sum(map(log, ratios)) / len(ratios))


def shown(times: dict[str, float], wrong: set[str], columns: Iterable[str]) -> list[str]:
    """The figures of a line: `!` where one way of a contender was wrong, `wrong` where all were, `-` where none is."""
    absent = {name: "wrong" if name in wrong else "-" for name in columns}
    return [f"{times[name]:.1f}{'!' * (name in wrong)}" if name in times else text for name, text in absent.items()]


def _turn(call: Call, seconds: float) -> float:
    """The median of the calls of a few seconds."""
    call()
    times = []
    started = ended = perf_counter()
    while ended - started < seconds:
        before = ended
        call()
        ended = perf_counter()
        times.append(ended - before)
    return median(times)


async def _served_turn(call: Served, seconds: float) -> float:
    """The same for calls from a running event loop."""
    await call()
    times = []
    started = ended = perf_counter()
    while ended - started < seconds:
        before = ended
        await call()
        ended = perf_counter()
        times.append(ended - before)
    return median(times)


def _versions() -> str:
    """Of the peers that are installed."""
    found = []
    for name in _DISTRIBUTIONS:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def _importable(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True
