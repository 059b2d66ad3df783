"""The tests of requests pass with the newest packages that are allowed, not the locked ones alone, and with torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import ROOT

TESTS = ("server", "http", "oip", "security", "client", "grpc_api", "wire")
pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]


def copy_of_checkout(copy: Path) -> Path:
    """Copy what git has here, since the editable installation and the tests' own programs belong to a checkout."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


def test_the_newest_versions_that_are_allowed_pass_the_tests_of_requests(tmp_path: Path) -> None:
    copy = copy_of_checkout(tmp_path / "gathernd")
    python = copy / ".venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--upgrade", "--python", str(python)]
    subprocess.run([*uv, "--editable", ".[dev,otel,cloud,grpc]"], cwd=copy, check=True)
    # By pip, not uv: users set pip to find builds of torch for the CPU alone, which are far smaller.
    pins = (copy / "tests/examples/requirements-torch.txt").read_text().splitlines()
    torch = [pin for pin in pins if pin.startswith("torch==")]
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-input", *torch], check=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GATHERND_", "PYTEST_"))}
    pytest_command = [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    done = subprocess.run(
        [*pytest_command, *(f"tests/{name}" for name in TESTS)],
        cwd=copy, env=variables, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:]
