"""What was acknowledged survives, and everything is old or new whole: see `tests.store.crash` for how it is tried."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import SOAK, slow_but_for
from tests.store.crash import MODES
from tests.store.crash_runs import STRIDE, run


@pytest.mark.parametrize("mode", slow_but_for(("survivor",), MODES))
def test_dying_at_a_step_of_upload_replace_delete_scatter_or_checkpoint(mode: str, warmed: Path) -> None:
    stride = min(STRIDE, 40)
    assert run(warmed, "steps", mode, stride, MODES.index(mode), "contents") >= 120 // stride


def test_sigkill_at_any_moment_loses_nothing(soak_scale: int, warmed: Path) -> None:
    assert run(warmed, "kills", 10 * soak_scale if SOAK else 3, soak_scale) > 0
