"""The stages of a request are measured on the code as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_all_stages_are_measured(warmed: Path) -> None:
    environment = {**os.environ, "GATHERND_CACHE_DIR": str(warmed)}
    command = [sys.executable, "-m", "benchmarks.stages", "--seconds", "0.001"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)
    _, *lines = done.stdout.splitlines()
    found = {line.split()[0]: float(line.split()[1]) for line in lines}
    assert found.keys() == {"headers", "parse", "plan", "run", "encode", "send", "whole", "between"}
    assert all(number > 0 for name, number in found.items() if name != "between")
