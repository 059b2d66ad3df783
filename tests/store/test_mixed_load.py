"""A real service under a mixed load while its workers are killed: see `tests.store.mixed_load` for what must hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.mixed_load import run


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_mixed_load_on_more_than_a_thousand_tensors_loses_nothing(tmp_path: Path, warmed: Path) -> None:
    counts = run(tmp_path / "kept", warmed, 25, 2, 1100, kills=2)
    assert counts["tensors"] > 800
    assert counts["workers killed"] > 1
    assert counts["groups killed"] > 1


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_an_hour_of_mixed_load(tmp_path: Path, warmed: Path) -> None:
    # With what is prepared and judged, and the test above, the part of `make soak` takes an hour.
    counts = run(tmp_path / "kept", warmed, 3420, 3, 1500)
    assert counts["workers killed"] > 100
