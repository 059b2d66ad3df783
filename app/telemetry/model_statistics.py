"""Count the requests and times of each inference-protocol model, summed over the worker processes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from time import perf_counter, time
from typing import Any, Final

from app.telemetry.served_request import ServedRequest
from app.telemetry.shared_counters import Counters, unshared_counters

_STAGES: Final = ("input_s", "queue_s", "infer_s", "output_s")
_SUCCESS: Final = ("success", *_STAGES)
_FAIL: Final = ("fail", "fail_s")
_PARTS: Final = (*_SUCCESS, *_FAIL)
"""The cells of a model: the numbers of answered and failed requests, and the seconds of each stage."""
_MOST: Final = 1 << 10
"""Maximum number of models counted at a time. At this number, the half called longest ago is dropped."""


class ModelStatistics:
    """The statistics of one model. Each value has its own cell in this process's counters."""

    __slots__ = ("_counters", "_fail", "_last", "_name", "_success")

    def __init__(self, name: str, counters: Counters) -> None:
        self._name = name
        self._counters = counters
        # There is a separate cell for each process, because the result is the latest time of all processes, not a sum.
        self._last = counters.cell(f"oip-last|{name}|{counters.slot.number}")
        self._success: list[int] = []
        self._fail: list[int] = []

    @property
    def last(self) -> float:
        """The time when the model was last called, in milliseconds since 1970, or 0.0 if it never was."""
        return self._counters.values[self._last]

    def count_success(self, request: ServedRequest, arrived: float) -> None:
        """Count a request whose response has just been encoded. Its body had arrived at `arrived`."""
        now = perf_counter()
        parsed, kernel, end = request.parsed, request.kernel, request.kernel_end
        values = self._counters.values
        self._success = success, to_input, to_queue, to_infer, to_output = self._success or self._cells(_SUCCESS)
        values[success] += 1.0
        values[to_input] += parsed - arrived
        values[to_queue] += kernel - parsed
        values[to_infer] += end - kernel
        values[to_output] += now - end
        values[self._last] = time() * 1e3

    def count_failure(self, started: float) -> None:
        """Count a refused request that began at the time `started`."""
        values = self._counters.values
        self._fail = fail, seconds = self._fail or self._cells(_FAIL)
        values[fail] += 1.0
        values[seconds] += perf_counter() - started
        values[self._last] = time() * 1e3

    def forget(self) -> None:
        """Release the model's cells."""
        self._counters.forget(
            [f"oip-last|{self._name}|{self._counters.slot.number}", *(_cell(self._name, part) for part in _PARTS)]
        )

    def _cells(self, parts: Collection[str]) -> list[int]:
        return [self._counters.cell(_cell(self._name, part)) for part in parts]


class Statistics:
    """The statistics of all model versions by `NAME@VERSION`. They are zero for a version that was never called."""

    def __init__(self, counters: Counters | None = None) -> None:
        self.counters = counters or unshared_counters()
        # Models that an earlier worker in this slot counted still have cells, so they also count toward the maximum.
        counted = {label.partition("|")[0] for label in self.counters.labels("oip")}
        self._models = {name: ModelStatistics(name, self.counters) for name in counted}

    def of(self, name: str) -> ModelStatistics:
        """Return the statistics of an existing model, in which to count a request."""
        found = self._models.get(name)
        if found is None:
            if len(self._models) >= _MOST:
                recent = sorted(self._models, key=lambda known: self._models[known].last)[_MOST // 2 :]
                self.keep(recent)
            found = self._models[name] = ModelStatistics(name, self.counters)
        return found

    def keep(self, names: Collection[str]) -> None:
        """Drop every model that is not in `names`."""
        for name in [known for known in self._models if known not in names]:
            self._models.pop(name).forget()

    def bodies(self, names: Collection[str], more: Set[str] = frozenset()) -> Iterator[dict[str, Any]]:
        """Yield the statistics of each model version in the format of the protocol's statistics extension.

        The versions in `more` are included only if they were called. Times are in nanoseconds. Call this from a thread,
        because there may be very many versions.
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
            "success": _duration(count, sum(found[stage] for stage in _STAGES)),
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
