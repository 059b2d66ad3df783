"""Schedules of a simulated cluster: no wrong row, no mixture, nothing acknowledged lost, all served when faults end.

60 in `make test`, 400 in `make test-all`, 50,000 in a soak, which begins at a seed of its own.
`python -m tests.cluster.simulation SEED` runs one again.
"""

from __future__ import annotations

from random import SystemRandom

import pytest

from tests.cluster.simulation.schedule import Schedule
from tests.cluster.simulation.truth import Violation
from tests.conftest import SOAK, TEST_ALL

BLOCKS = 10
SCHEDULES = 500 * SOAK if SOAK else 400 if TEST_ALL else 60
FIRST = SystemRandom().randrange(10**9) if SOAK else 0


def failure(seed: int) -> str:
    """What a schedule fails with, "" where all holds."""
    schedule = Schedule(seed)
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
