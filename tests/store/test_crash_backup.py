"""A backup that dies leaves the one before, a restore nothing that a service starts on (`tests.store.crash_backup`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import slow_but_for
from tests.store.crash_backup import MODES
from tests.store.crash_runs import STRIDE, run


@pytest.mark.parametrize("mode", slow_but_for(("kill",), MODES))
def test_dying_at_a_step_of_a_backup_or_a_restore(mode: str, warmed: Path) -> None:
    assert run(warmed, mode, STRIDE, MODES.index(mode), program="crash_backup") >= 220 // STRIDE
