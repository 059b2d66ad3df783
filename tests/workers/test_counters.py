"""Counters in shared memory: cells that are given up, and slots that are full. test_metrics.py has their sums."""

from __future__ import annotations

import logging

import pytest

from app.telemetry import shared_counters
from app.telemetry.shared_counters import (
    SlotHeader,
    unshared_counters,
)


def test_a_cell_given_up_is_named_anew_and_starts_at_nothing() -> None:
    mine = unshared_counters()
    mine.add("old", 5)
    mine.forget(["old", "never there"])
    assert mine.totals() == {}
    mine.add("new", 1)
    assert mine.totals() == {"new": 1.0}
    assert mine.header[SlotHeader.USED] == 1


def test_a_full_slot_counts_no_further_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_counters, "_SPARE", 10)
    mine = unshared_counters()
    with caplog.at_level(logging.ERROR, "gathernd"):
        for number in range(20):
            mine.add(f"n{number}")
        cell = mine.adjacent_cells([f"r{number}" for number in range(30)])
    mine.values[cell + 29] += 1
    assert mine.totals() == {f"n{number}": 1.0 for number in range(10)}
    assert len(caplog.records) == 1
