"""A disk without a free byte. What an error of the disk at each step leads to is `refused` of `tests.store.crash`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import slow_but_for
from tests.http.limited import small_disk

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", slow_but_for(["tmpfs"], ["tmpfs"], ["ext4"]))
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
