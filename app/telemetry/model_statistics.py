"""Counts and times of each model of the inference protocol, summed over the worker processes.

A request is counted in plain numbers, which are written to the shared counters within FLUSH_S: there are many numbers,
and one there costs three times as much. Who adds up waits that long first, so that nothing is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Set
from time import perf_counter, time
from typing import Any, Final

from app.telemetry.served_request import ServedRequest
from app.telemetry.shared_counters import Counters, unshared_counters

FLUSH_S: Final = 0.02
_PARTS: Final = ("success", "fail", "success_s", "fail_s", "queue_s", "input_s", "infer_s", "output_s")
_MOST: Final = 1 << 10
"""So many models are counted at a time; those that were called the longest ago make room."""


class ModelStatistics:
    """One model's numbers since the last flush: requests answered and failed, and the seconds of each stage."""

    __slots__ = ("last", "owner", *_PARTS)

    def __init__(self, owner: Statistics) -> None:
        self.owner = owner
        self.last = 0.0
        self.clear()

    def clear(self) -> None:
        """Start anew."""
        self.success = self.fail = 0
        self.success_s = self.fail_s = self.queue_s = self.input_s = self.infer_s = self.output_s = 0.0

    def succeeded(self, request: ServedRequest, arrived: float) -> None:
        """Count a request whose body had arrived at `arrived` and whose answer has just been encoded."""
        now = perf_counter()
        parsed, kernel, end = request.parsed, request.kernel, request.kernel_end
        self.success += 1
        self.success_s += now - arrived
        self.input_s += parsed - arrived
        self.queue_s += kernel - parsed
        self.infer_s += end - kernel
        self.output_s += now - end
        self.last = now
        if not self.owner.scheduled:
            self.owner.schedule()

    def failed(self, started: float) -> None:
        """Count a request that was refused."""
        now = perf_counter()
        self.fail += 1
        self.fail_s += now - started
        self.last = now
        if not self.owner.scheduled:
            self.owner.schedule()


class Statistics:
    """The statistics of all versions of models, by `NAME@VERSION`. One that was never called has zeros."""

    def __init__(self, counters: Counters | None = None) -> None:
        self.counters = counters or unshared_counters()
        self.scheduled = False
        # Those that an earlier worker has counted in this slot take cells there until they make room, too.
        counted = {label.partition("|")[0] for label in self.counters.labels("oip")}
        self._models = {name: ModelStatistics(self) for name in counted}

    def of(self, name: str) -> ModelStatistics:
        """The numbers of a model that exists, for counting."""
        found = self._models.get(name)
        if found is None:
            if len(self._models) >= _MOST:
                recent = sorted(self._models, key=lambda known: self._models[known].last)[_MOST // 2 :]
                self.keep(recent)
            found = self._models[name] = ModelStatistics(self)
        return found

    def schedule(self) -> None:
        """Have the numbers written soon. From the event loop."""
        self.scheduled = True
        asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write what was counted to where other processes see it."""
        self.scheduled = False
        counters = self.counters
        epoch = time() - perf_counter()
        for name, numbers in self._models.items():
            if not numbers.success and not numbers.fail:
                continue
            for part in _PARTS:
                number = getattr(numbers, part)
                if number:
                    counters.add(_cell(name, part), number)
            counters.values[counters.cell(self._last(name))] = (epoch + numbers.last) * 1e3
            numbers.clear()

    def keep(self, names: Collection[str]) -> None:
        """Forget every model that is not among `names`."""
        self.flush()
        for name in [known for known in self._models if known not in names]:
            self.counters.forget([*(_cell(name, part) for part in _PARTS), self._last(name)])
            del self._models[name]

    async def flush_all(self) -> None:
        """Have all processes write what they counted."""
        if self.counters.shared:
            await asyncio.sleep(2 * FLUSH_S)  # what other processes have answered has been written then
        self.flush()

    def bodies(self, names: Collection[str], more: Set[str] = frozenset()) -> Iterator[dict[str, Any]]:
        """The numbers of each version of a model as the statistics extension of the protocol names them.

        Of `more` versions those that were called are there too. Times are in nanoseconds. For a thread, after
        `flush_all`: there may be very many.
        """
        totals = self.counters.totals()
        last: dict[str, float] = {}
        called = {cell.split("|")[1] for cell in totals if cell.startswith("oip|")} if more else set()
        names = [*names, *sorted((called & more).difference(names))]
        for cell, number in totals.items():
            kind, _, rest = cell.partition("|")
            if kind == "oip-last":
                name = rest.partition("|")[0]
                last[name] = max(last.get(name, 0.0), number)
        return (_body(name, totals, last.get(name, 0.0)) for name in names)

    def _last(self, name: str) -> str:
        # The latest of all processes, not a sum: a cell for each.
        return f"oip-last|{name}|{self.counters.slot.number}"


def _cell(name: str, part: str) -> str:
    return f"oip|{name}|{part}"


def _body(counted: str, totals: Mapping[str, float], last: float) -> dict[str, Any]:
    found = {part: totals.get(_cell(counted, part), 0.0) for part in _PARTS}
    name, _, version = counted.rpartition("@")
    count = int(found["success"])
    timings = {
        "compute_input": _duration(count, found["input_s"]),
        "compute_infer": _duration(count, found["infer_s"]),
        "compute_output": _duration(count, found["output_s"]),
    }
    return {
        "name": name,
        "version": version,
        "last_inference": round(last),
        "inference_count": count,
        "execution_count": count,
        "inference_stats": {
            "success": _duration(count, found["success_s"]),
            "fail": _duration(int(found["fail"]), found["fail_s"]),
            "queue": _duration(count, found["queue_s"]),
            **timings,
            "cache_hit": _duration(0, 0.0),
            "cache_miss": _duration(0, 0.0),
        },
        "response_stats": {},
        "batch_stats": [{"batch_size": 1, **timings}] if count else [],
        "memory_usage": [],
    }


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}
