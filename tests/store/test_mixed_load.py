"""A real service under a mixed load while its workers are killed: see `tests.store.mixed_load` for what must hold."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.store.mixed_load import run


def run_and_report(
    tmp_path: Path, warmed: Path, seconds: float, seed: int, tensors: int, kills: int = 0
) -> dict[str, int]:
    counts = run(tmp_path / "kept", warmed, seconds, seed, tensors, kills)
    sys.stdout.write(f"{counts}\n")
    return counts


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_mixed_load_with_kills_loses_nothing_and_repeats_no_etag(tmp_path: Path, warmed: Path) -> None:
    counts = run_and_report(tmp_path, warmed, 5, 1, 120)
    assert counts["scatters"] > 20
    assert sum(counts.get(each, 0) for each in ("workers killed", "groups killed", "parents killed")) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_mixed_load_on_more_than_a_thousand_tensors_loses_nothing(tmp_path: Path, warmed: Path) -> None:
    counts = run_and_report(tmp_path, warmed, 25, 2, 1100, kills=2)
    assert counts["tensors"] > 800
    assert counts["workers killed"] > 1
    assert counts["groups killed"] > 1


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_an_hour_of_mixed_load(tmp_path: Path, warmed: Path) -> None:
    # With what is prepared and judged, and the tests above, the part of `make soak` takes an hour.
    counts = run_and_report(tmp_path, warmed, 3420, 3, 1500)
    assert counts["workers killed"] > 100
