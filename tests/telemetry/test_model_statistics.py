"""Counts and times of models: what a worker that is replaced leaves in the shared memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from time import perf_counter

import pytest

from app.telemetry import model_statistics
from app.telemetry.model_statistics import Statistics
from app.telemetry.shared_counters import CELLS, CounterGroup, join


@pytest.fixture
def group() -> Iterator[CounterGroup]:
    made = CounterGroup(2)
    yield made
    os.close(made.fd)


def fail_once(statistics: Statistics, names: Iterator[str]) -> None:
    for name in names:
        statistics.of(name).count_failure(perf_counter())


def test_models_that_a_replaced_worker_has_counted_make_room_for_others(group: CounterGroup) -> None:
    """Each version that is published is a model of its own: in months there are very many."""
    rounds = CELLS // model_statistics._MOST
    for worker in range(rounds):
        statistics = Statistics(join(group.fd, 1))
        fail_once(statistics, (f"items@{worker * model_statistics._MOST + n}" for n in range(model_statistics._MOST)))
        group.release(1)
    counters = join(group.fd, 1)
    counters.add("gathernd_errors|internal")
    assert counters.totals()["gathernd_errors|internal"] == 1
    assert len(counters.totals()) < 4 * model_statistics._MOST


def test_a_model_that_is_counted_on_after_its_worker_was_replaced_keeps_its_numbers(group: CounterGroup) -> None:
    for _ in range(2):
        fail_once(Statistics(join(group.fd, 1)), iter(["items@1"]))
        group.release(1)
    (found,) = Statistics(join(group.fd, 1)).bodies(["items@1"])
    assert found["inference_stats"]["fail"]["count"] == 2
