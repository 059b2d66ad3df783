"""What a replicated content has is durable, and what it shows is committed: see `tests.store.crash_replicated`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import slow_but_for
from tests.store.crash_replicated_case import MODES
from tests.store.crash_runs import STRIDE, run


@pytest.mark.parametrize("mode", slow_but_for(("kill", "lost"), MODES))
def test_dying_at_a_step_of_append_commit_drop_adopt_or_checkpoint(mode: str, warmed: Path) -> None:
    assert run(warmed, mode, STRIDE, MODES.index(mode), program="crash_replicated") >= 400 // STRIDE


@pytest.mark.parametrize("mode", slow_but_for(("lost",), MODES))
def test_dying_at_a_step_of_a_table_that_grows(mode: str, warmed: Path) -> None:
    assert run(warmed, mode, STRIDE, MODES.index(mode), program="crash_replicated_growth") >= 500 // STRIDE
