"""What the service takes from the inside of uvicorn, which may change it in any minor version."""

from __future__ import annotations

import tomllib
from importlib.metadata import version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
INSTALLED = Version(version("uvicorn"))


def test_uvicorn_is_bounded_to_the_minor_version_that_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = (
        found.specifier for found in map(Requirement, project["dependencies"]) if found.name.startswith("uvicorn")
    )
    assert wanted.contains(INSTALLED)
    assert wanted.contains(f"{INSTALLED.major}.{INSTALLED.minor}.99")
    assert not wanted.contains(f"{INSTALLED.major}.{INSTALLED.minor + 1}.0")
    assert not wanted.contains(f"{INSTALLED.major}.{INSTALLED.minor - 1}.99")
