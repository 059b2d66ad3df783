"""Schedules of a simulated cluster: no wrong row, no mixture, nothing acknowledged lost, all served when faults end.

20 in `make test`, 100 in `make test-all`, 50,000 in a soak, which begins at a seed of its own.
`python -m tests.cluster.simulation SEED` runs one again.
"""

from __future__ import annotations

from random import SystemRandom

import pytest

from tests.cluster.simulation.planted import PLANTED
from tests.cluster.simulation.schedule import Parts, Schedule
from tests.cluster.simulation.truth import Violation
from tests.conftest import SOAK, TEST_ALL

BLOCKS = 20
SCHEDULES = 500 * SOAK if SOAK else 100 if TEST_ALL else 20
FIRST = SystemRandom().randrange(10**9) if SOAK else 0


def failure(seed: int, parts: Parts | None = None) -> str:
    """What a schedule fails with, "" where all holds."""
    schedule = Schedule(seed, parts)
    try:
        schedule.run()
    except Violation as violation:
        return f"seed {seed}, at {schedule.world.now:.3f} s: {violation}"
    return ""


@pytest.mark.parametrize("block", range(BLOCKS))
def test_all_holds_in_every_schedule(block: int) -> None:
    size = -(-SCHEDULES // BLOCKS)
    first = FIRST + block * size
    assert list(filter(None, map(failure, range(first, first + size)))) == []


@pytest.mark.parametrize("seed", [
    pytest.param(7000324, id="a shard is made primary before its lost disk is noticed"),
    pytest.param(20453, id="a shard is full that an open range is to move to, and copies go one at a time"),
    pytest.param(97, id="a range is opened whose only disk is lost, and a URL has its rows"),
])  # fmt: skip
def test_all_holds_in_a_schedule_that_once_failed(seed: int) -> None:
    assert failure(seed) == ""


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_fault_is_found_within_50_schedules(planted: str) -> None:
    for seed in range(50):
        try:
            Schedule(seed, PLANTED[planted]).run()
        except Violation:
            return
    pytest.fail("50 schedules did not find it")
