"""What was acknowledged survives, and everything is old or new whole: see `tests.store.crash` for how it is tried."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SOAK, TEST_ALL
from tests.store import crash_backup
from tests.store.crash import MODES, SEQUENCES

ROOT = Path(__file__).parents[2]
# Every step in a soak; in a sample, which steps are left out differs from mode to mode.
STRIDE = 1 if SOAK else 3 if TEST_ALL else 26


def run(warmed: Path, *arguments: object, program: str = "crash") -> int:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.store.{program}", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "GATHERND_CACHE_DIR": str(warmed)},
        capture_output=True,
        text=True,
        check=False,
        timeout=None if SOAK else 240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return int(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("sequence", SEQUENCES)
@pytest.mark.parametrize("mode", MODES)
def test_dying_at_a_step_of_a_change_of_contents_versions_or_aliases(mode: str, sequence: str, warmed: Path) -> None:
    assert run(warmed, "steps", mode, STRIDE, MODES.index(mode), sequence) >= 120 // STRIDE


@pytest.mark.parametrize("mode", crash_backup.MODES)
def test_dying_at_a_step_of_a_backup_or_a_restore(mode: str, warmed: Path) -> None:
    seed = crash_backup.MODES.index(mode)
    assert run(warmed, "steps", mode, STRIDE, seed, program="crash_backup") >= 220 // STRIDE


def test_sigkill_of_a_backup_leaves_the_one_before_and_the_store_as_they_were(soak_scale: int, warmed: Path) -> None:
    assert run(warmed, "kills", 4 * soak_scale, soak_scale, program="crash_backup") > 0


def test_sigkill_at_any_moment_loses_nothing(soak_scale: int, warmed: Path) -> None:
    assert run(warmed, "kills", 10 * soak_scale, soak_scale) > 0


def test_sigkill_of_one_worker_leaves_the_others_nothing_broken(soak_scale: int, warmed: Path) -> None:
    assert run(warmed, "workers", 10 * soak_scale, soak_scale) > 0


def test_more_busy_tensors_than_a_process_remembers_logs_of_lose_nothing(soak_scale: int, warmed: Path) -> None:
    assert run(warmed, "many", 1400 if TEST_ALL else 140, soak_scale) > 0
