"""What a replicated content has is durable, and what it shows is committed: see `tests.store.crash_replicated`."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from tests.conftest import slow_but_for
from tests.store.crash_replicated import COURSES
from tests.store.crash_replicated_case import MODES
from tests.store.crash_runs import STRIDE, run

FEW = [("kill", "rows"), ("lost", "rows"), ("lost", "growth")]


@pytest.mark.parametrize(("mode", "course"), slow_but_for(FEW, product(MODES, COURSES)))
def test_dying_at_a_step_of_a_change_of_a_replica_or_a_primary(mode: str, course: str, warmed: Path) -> None:
    assert run(warmed, mode, STRIDE, MODES.index(mode), course, program="crash_replicated") >= 400 // STRIDE
