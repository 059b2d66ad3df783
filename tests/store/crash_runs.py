"""How tests run `tests.store.crash` and the programs beside it, and how many of their steps."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

from tests.conftest import SOAK
from tests.http.server import run_program

ROOT: Final = Path(__file__).parents[2]
STRIDE: Final = 1 if SOAK else 90
"""Every step in a soak; in a sample, which steps are left out differs from mode to mode."""


def run(warmed: Path, *arguments: object, program: str = "crash") -> int:
    """Run a program of this folder: how many deaths it tried."""
    done = run_program(
        [sys.executable, "-m", f"tests.store.{program}", *map(str, arguments)],
        variables={**os.environ, "GATHERND_CACHE_DIR": str(warmed)},
        timeout=None if SOAK else 240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return int(json.loads(done.stdout.splitlines()[-1]))
