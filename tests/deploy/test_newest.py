"""The newest packages that pyproject.toml allows: the service is installed with them, and its HTTP tests run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = (
    "tests/api",
    "tests/server",
    "tests/telemetry",
    "tests/http",
    "tests/native",
    "tests/oip",
    "tests/security",
    "tests/client",
    "tests/grpc_api",
)
CLIENTS = ("tests/oip", "tests/grpc_api", "tests/client")
"""What Triton's newest client is tried with, which wants an older ml_dtypes than the newest."""


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("more", "chosen"), [((), TESTS), (("tritonclient[grpc,http]>=2.73",), CLIENTS)])
def test_the_newest_versions_that_are_allowed_pass_the_tests_of_requests(
    tmp_path: Path, more: tuple[str, ...], chosen: tuple[str, ...]
) -> None:
    # A copy, since the editable installation and the tests' own programs belong to a checkout.
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout.decode()  # fmt: skip
    copy = tmp_path / "gathernd"
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    python = copy / ".venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*uv, "--upgrade", "--editable", ".[dev,otel,cloud,grpc]", *more], cwd=copy, check=True)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GATHERND_", "PYTEST_"))}
    tests = [name for name in chosen if (copy / name).exists()]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile", *tests],
        cwd=copy, env=variables, check=False, capture_output=True, text=True,
    )  # fmt: skip
    shown = subprocess.run([*uv[:4], "freeze", "--python", str(python)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-20_000:]}\n{shown.stdout}"
