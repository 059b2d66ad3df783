"""What a test needs of the machine, and the reason with which it is skipped where that is missing.

tests/conftest.py knows these reasons: under GATHERND_REQUIRE_ALL=1 such a skip is a failure.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def skip_without(command: str, package: str) -> None:
    """Skip the test that asks where a command of a Debian package is missing."""
    if shutil.which(command) is None:
        pytest.skip(f"needs the Debian package {package}")


def in_environment(path: str, target: str) -> Path:
    """A path in an environment that `make TARGET` makes; the test that asks is skipped where it is missing."""
    found = ROOT / path
    if not found.exists():
        pytest.skip(f"needs the environment {Path(path).parts[0]}, which make {target} makes")
    return found
