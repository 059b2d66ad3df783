"""What was acknowledged survives, and everything is old or new whole: see `tests.store.crash` for how it is tried."""

from __future__ import annotations

from itertools import cycle, product
from pathlib import Path

import pytest

from tests.conftest import slow_but_for
from tests.store.crash import MODES, SEQUENCES
from tests.store.crash_runs import STRIDE, run

FEW = [("survivor", "versions"), ("kill", "imports"), ("refused", "imports"), ("lost", "upserts")]
SOME = list(dict.fromkeys([*FEW, *zip(MODES, cycle(SEQUENCES)), *zip(MODES, cycle([*SEQUENCES][1:]))]))
"""`make test-all` takes each mode with two sequences."""


@pytest.mark.parametrize(("mode", "sequence"), slow_but_for(FEW, SOME, product(MODES, SEQUENCES)))
def test_dying_at_a_step_of_a_change_loses_nothing_that_was_acknowledged(
    mode: str, sequence: str, warmed: Path
) -> None:
    assert run(warmed, mode, STRIDE, MODES.index(mode), sequence) >= 120 // STRIDE
