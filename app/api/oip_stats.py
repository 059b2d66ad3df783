"""Counts and times of each model of the inference protocol, kept as plain numbers on the hot path."""

from __future__ import annotations

from collections.abc import Collection
from time import perf_counter, time
from typing import Any

from app.service import Stages

_FORGET_ABOVE = 1 << 12


class ModelStatistics:
    """One model's numbers: requests that were answered and that failed, and seconds, added up, of each stage."""

    __slots__ = (
        "fail_count",
        "fail_s",
        "infer_s",
        "input_s",
        "last",
        "output_s",
        "queue_s",
        "success_count",
        "success_s",
    )

    def __init__(self) -> None:
        self.success_count = 0
        self.fail_count = 0
        self.success_s = 0.0
        self.fail_s = 0.0
        self.queue_s = 0.0
        self.input_s = 0.0
        self.infer_s = 0.0
        self.output_s = 0.0
        self.last = 0.0

    def succeeded(self, stages: Stages, arrived: float) -> None:
        """Count a request whose body had arrived at `arrived` and whose answer has just been encoded."""
        now = perf_counter()
        parsed, kernel, end = stages.parsed, stages.kernel, stages.kernel_end
        self.success_count += 1
        self.success_s += now - arrived
        self.input_s += parsed - arrived
        self.queue_s += kernel - parsed
        self.infer_s += end - kernel
        self.output_s += now - end
        self.last = now

    def failed(self, started: float) -> None:
        """Count a request that was refused."""
        now = perf_counter()
        self.fail_count += 1
        self.fail_s += now - started
        self.last = now

    def body(self, name: str, version: str) -> dict[str, Any]:
        """The numbers as the statistics extension of the protocol names them; times in nanoseconds."""
        count = self.success_count
        stages = {
            "compute_input": _duration(count, self.input_s),
            "compute_infer": _duration(count, self.infer_s),
            "compute_output": _duration(count, self.output_s),
        }
        return {
            "name": name,
            "version": version,
            "last_inference": round((time() - perf_counter() + self.last) * 1e3) if self.last else 0,
            "inference_count": count,
            "execution_count": count,
            "inference_stats": {
                "success": _duration(count, self.success_s),
                "fail": _duration(self.fail_count, self.fail_s),
                "queue": _duration(count, self.queue_s),
                **stages,
                "cache_hit": _duration(0, 0.0),
                "cache_miss": _duration(0, 0.0),
            },
            "response_stats": {},
            "batch_stats": [{"batch_size": 1, **stages}] if count else [],
            "memory_usage": [],
        }


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}


class Statistics:
    """The statistics of all models of this process, by name. A model that was never called has zeros."""

    def __init__(self) -> None:
        self._models: dict[str, ModelStatistics] = {}

    def of(self, name: str) -> ModelStatistics:
        """The numbers of a model that exists."""
        found = self._models.get(name)
        if found is None:
            found = self._models[name] = ModelStatistics()
        return found

    def crowded(self) -> bool:
        """Whether so many names have been counted that those which are gone should be dropped."""
        return len(self._models) > _FORGET_ABOVE

    def keep(self, names: Collection[str]) -> None:
        """Forget every model that is not among `names`."""
        self._models = {name: numbers for name, numbers in self._models.items() if name in names}
