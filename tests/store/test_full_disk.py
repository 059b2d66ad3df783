from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SOAK, slow_but_for
from tests.http.limited import small_disk
from tests.store.crash_runs import STRIDE
from tests.store.full_disk_steps import SUBJECTS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", slow_but_for(["tmpfs"], ["tmpfs", "ext4"]))
def test_where_the_disk_is_full_tensors_are_served_removed_and_backed_up(kind: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", kind, 24 << 20) as disk:
        done = subprocess.run(
            disk.command([sys.executable, "-m", "tests.store.full_disk", str(disk.place)]),
            env={**os.environ, "PYTHONPATH": str(ROOT)},  # it starts in the root folder
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr[-3000:]


STEPS = {"contents": 240, "versions": 280, "imports": 270, "backups": 230}
"""At least so many steps each subject takes."""
EVERY = [(kind, what) for kind in ("tmpfs", "ext4") for what in SUBJECTS]


@pytest.mark.parametrize(("kind", "what"), slow_but_for((("tmpfs", "imports"),), EVERY))
def test_whatever_meets_a_full_disk_at_a_step_is_refused_whole_and_succeeds_once_there_is_room(
    kind: str, what: str, tmp_path: Path, warmed: Path
) -> None:
    # To fill an ext4 waits for a real disk: a third of the steps there.
    stride = min(STRIDE if kind == "tmpfs" or SOAK else 3 * STRIDE, STEPS[what])
    with small_disk(tmp_path / "small", kind, 24 << 20) as disk:
        program = [sys.executable, "-m", "tests.store.full_disk_steps"]
        seed = SUBJECTS.index(what)
        done = subprocess.run(
            disk.command([*program, what, str(disk.place), str(stride), str(seed)]),
            env={**os.environ, "PYTHONPATH": str(ROOT), "GATHERND_CACHE_DIR": str(warmed)},
            capture_output=True,
            text=True,
            check=False,
            timeout=None if SOAK else 240,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    steps, refusals = json.loads(done.stdout)
    assert steps >= STEPS[what] // stride
    assert refusals >= steps // 4
