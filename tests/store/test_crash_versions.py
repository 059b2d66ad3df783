"""Versions, aliases and imports survive as contents do (`test_crash.py`); a file of its own, for another process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import slow_but_for
from tests.store.crash import MODES, SEQUENCES
from tests.store.crash_runs import STRIDE, run

EVERY = [(mode, name) for mode in MODES for name in SEQUENCES if name != "contents"]
FEW = (("kill", "versions"),)


@pytest.mark.parametrize(("mode", "sequence"), slow_but_for(FEW, EVERY))
def test_dying_at_a_step_of_a_change_of_versions_aliases_or_imports(mode: str, sequence: str, warmed: Path) -> None:
    assert run(warmed, "steps", mode, STRIDE, MODES.index(mode), sequence) >= 120 // STRIDE
