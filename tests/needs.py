"""What a test needs of the machine, and the reason with which it is skipped where that is missing.

tests/conftest.py knows these reasons: under GATHERND_REQUIRE_ALL=1 such a skip is a failure.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def skip_without(**packages: str) -> None:
    """Skip the test that asks where commands are missing, each given with the Debian package that brings it."""
    missing = sorted({package for command, package in packages.items() if shutil.which(command) is None})
    if missing:
        pytest.skip(f"needs the Debian package {', '.join(missing)}")


def in_environment(path: str, target: str) -> Path:
    """A path in an environment that `make TARGET` makes; the test that asks is skipped where it is missing."""
    found = ROOT / path
    if not found.exists():
        pytest.skip(f"needs the environment {Path(path).parts[0]}, which make {target} makes")
    return found
