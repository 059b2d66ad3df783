"""Run schedules: python -m tests.cluster.simulation FIRST [BEHIND_LAST]

Prints what each one that fails fails with, and at the end what the clients were answered in all.
"""

from __future__ import annotations

import sys
from collections import Counter
from time import perf_counter

from tests.cluster.simulation.schedule import Schedule
from tests.cluster.simulation.truth import Violation


def main() -> int:
    """The number of schedules that failed."""
    first = int(sys.argv[1])
    behind = int(sys.argv[2]) if len(sys.argv) > 2 else first + 1
    outcomes: Counter[str] = Counter()
    events = failed = 0
    began = perf_counter()
    for seed in range(first, behind):
        schedule = Schedule(seed)
        try:
            schedule.run()
        except Violation as violation:
            failed += 1
            print(f"seed {seed}, at {schedule.world.now:.3f} s: {violation}", flush=True)  # noqa: T201
        outcomes.update(schedule.clients.outcomes)
        events += schedule.world.events
    seconds = perf_counter() - began
    print(f"{behind - first} schedules, {events} events, {seconds:.0f} s, {failed} failed")  # noqa: T201
    for outcome, times in sorted(outcomes.items()):
        print(f"{times:10} {outcome}")  # noqa: T201
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))
