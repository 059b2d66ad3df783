"""Versions, aliases, imports and keys survive as contents do (`test_crash.py`); in a file for another process."""

from __future__ import annotations

from itertools import cycle, product
from pathlib import Path

import pytest

from tests.conftest import slow_but_for
from tests.store.crash import MODES, SEQUENCES
from tests.store.crash_runs import STRIDE, run

OTHERS = [name for name in SEQUENCES if name != "contents"]
FEW = [("kill", "versions"), ("lost", "upserts")]
SOME = list(dict.fromkeys([*FEW, *zip(MODES, cycle(OTHERS))]))
"""`make test-all` takes each mode with one sequence."""


@pytest.mark.parametrize(("mode", "sequence"), slow_but_for(FEW, SOME, product(MODES, OTHERS)))
def test_dying_at_a_step_of_a_change_of_versions_aliases_imports_or_keys(
    mode: str, sequence: str, warmed: Path
) -> None:
    assert run(warmed, "steps", mode, STRIDE, MODES.index(mode), sequence) >= 120 // STRIDE
