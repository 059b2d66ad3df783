"""Statistics and index of every model: there may be very many, so that their texts are made in a thread and charged."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from app.api.routes.v2_models import (
    ENTRY_BYTES,
    STATISTICS_BYTES,
    charged_writer,
    repository_index,
    statistics_of,
    statistics_of_all,
)
from app.errors import GatherError
from app.memory.budget import Memory
from app.server.readiness import Readiness
from app.telemetry.model_statistics import Statistics

NAMES = [f"model-{number}" for number in range(50)]


class ManyModels:
    """Models without a store, each with one version."""

    def __init__(self) -> None:
        self.statistics = Statistics()

    def names(self) -> list[str]:
        return NAMES

    def versions(self, name: str) -> list[str]:
        del name
        return ["1"]

    def find(self, name: str, version: str | None = None) -> None:
        """It is there."""

    def statistics_labels(self, names: list[str], newest: int | None = None) -> list[str]:
        del newest
        return [f"{name}@1" for name in names]


class Written(Memory):
    """Notes which thread wrote each body, and what was charged."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.threads: list[threading.Thread] = []
        self.charged = 0
        self.most = most

    def write(self, body: dict[str, Any]) -> str:
        self.threads.append(threading.current_thread())
        return str(body["name"])

    def charge(self, size: int) -> None:
        self.charged += size
        if self.charged > self.most:
            raise GatherError("overloaded", "full", retry_after=1)


def ask(which: str, written: Written) -> list[str]:
    models: Any = ManyModels()
    if which == "all":
        return asyncio.run(statistics_of_all(models, charged_writer(written, STATISTICS_BYTES, written.write)))
    if which == "one":
        return asyncio.run(
            statistics_of(models, "model-7", None, charged_writer(written, STATISTICS_BYTES, written.write))
        )
    return asyncio.run(
        repository_index(
            models, Readiness(), only_ready=False, write=charged_writer(written, ENTRY_BYTES, written.write)
        )
    )


@pytest.mark.parametrize(
    ("which", "names", "each"),
    [("all", NAMES, STATISTICS_BYTES), ("one", ["model-7"], STATISTICS_BYTES), ("index", NAMES, ENTRY_BYTES)],
)
def test_each_body_is_written_in_a_thread_and_charged(which: str, names: list[str], each: int) -> None:
    written = Written()
    assert ask(which, written) == names
    assert written.charged == each * len(names)
    assert threading.current_thread() not in written.threads
