"""Counters in shared memory: sums over processes, gauges of those that live, and slots that go on counting."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from app.telemetry import shared_counters
from app.telemetry.shared_counters import (
    GAUGE,
    CounterGroup,
    SlotHeader,
    join,
    unshared_counters,
)


@pytest.fixture
def group() -> Iterator[CounterGroup]:
    made = CounterGroup(4)
    yield made
    os.close(made.fd)


def test_a_number_is_the_sum_over_all_slots(group: CounterGroup) -> None:
    one, two = join(group.fd, 1), join(group.fd, 2)
    one.add("a", 3)
    two.add("b")
    two.add("a", 4)
    assert one.totals() == two.totals() == {"a": 7.0, "b": 1.0}


def test_other_processes_see_what_one_counts(group: CounterGroup) -> None:
    program = (
        "import sys; from app.telemetry.shared_counters import join; c = join(int(sys.argv[1]), 2); c.add('a', 5);"
        "print(c.totals()['a'])"
    )
    mine = join(group.fd, 1)
    mine.add("a", 2)
    done = subprocess.run(
        [sys.executable, "-c", program, str(group.fd)], pass_fds=(group.fd,), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "7.0"
    assert mine.totals()["a"] == 7.0


def test_a_slot_goes_on_where_its_last_process_ended(group: CounterGroup) -> None:
    first = join(group.fd, 1)
    first.add("a", 3)
    first.set_gauge(GAUGE + "open", 9)
    group.release(1)
    other = join(group.fd, 2)
    assert other.totals() == {"a": 3.0}
    second = join(group.fd, 1)
    assert second.totals() == {"a": 3.0, GAUGE + "open": 0.0}
    second.add("a")
    second.add("new", 2)
    assert other.totals() == {"a": 4.0, "new": 2.0, GAUGE + "open": 0.0}


def test_gauges_are_those_of_living_processes(group: CounterGroup) -> None:
    one, two = join(group.fd, 1), join(group.fd, 2)
    one.set_gauge(GAUGE + "open", 2)
    two.set_gauge(GAUGE + "open", 5)
    assert one.totals() == {GAUGE + "open": 7.0}
    group.release(2)
    assert one.totals() == {GAUGE + "open": 2.0}


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
