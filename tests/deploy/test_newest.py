"""The tests pass with the newest packages that are allowed, not only with the locked ones.

Tests of requests run with the newest of the service. Tests of clients run with the newest of its users (KServe's SDK,
Triton's client, NumPy, pandas, safetensors) and with the pinned torch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.needs import ROOT
from tests.other_python import other_python

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
TRITON = "tests/oip/triton/requirements.in"
ENVIRONMENTS = {
    ".venv-clients/kserve": ("tests/oip/kserve/requirements.in",),
    ".venv-clients/triton": (TRITON,),
    ".venv-docs": ("requirements/docs.in", "clients/python/pyproject.toml"),
}
"""Environments beside the main one, each with the files that its lock is made of (`make lock`)."""
OF_USERS = (
    "tests/oip/test_kserve.py",
    "tests/oip/test_tritonclient.py",
    "tests/grpc_api/test_kserve.py",
    "tests/grpc_api/test_newest_tritonclient.py",
    "tests/grpc_api/test_tritonclient.py",
    "tests/client/test_arrays_of_others.py",
    "tests/client/test_lookup.py",
    "tests/examples",
    "tests/wire/test_npy.py",
    "tests/wire/test_safetensors.py",
)
pytestmark = [pytest.mark.soak, pytest.mark.timeout(0)]


def copy_of_checkout(copy: Path) -> Path:
    """Copy what git has here, since the editable installation and the tests' own programs belong to a checkout."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True,
    ).stdout.decode()  # fmt: skip
    for name in filter(None, names.split("\0")):
        if (ROOT / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name, follow_symlinks=False)
    return copy


def install(copy: Path, environment: str, interpreter: str, *packages: str) -> Path:
    """Make an environment of the copy with the newest of these packages. Returns its interpreter."""
    python = copy / environment / "bin/python"
    subprocess.run([interpreter, "-m", "venv", python.parents[1]], check=True)
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--upgrade", "--python", str(python)]
    subprocess.run([*uv, *packages], cwd=copy, check=True)
    return python


def run(copy: Path, python: Path, *tests: str, **more: str) -> None:
    """Run these tests of the copy to a good end. A failure shows what each environment has."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GATHERND_", "PYTEST_"))}
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile", *tests],
        cwd=copy, env=variables | more, check=False, capture_output=True, text=True,
    )  # fmt: skip
    installed = ""
    for environment in (".venv", *ENVIRONMENTS):
        freeze = [sys.executable, "-m", "uv", "pip", "freeze", "--python", str(copy / environment / "bin/python")]
        shown = subprocess.run(freeze, check=False, capture_output=True, text=True)
        installed += f"\n{environment}:\n{shown.stdout}"
    assert done.returncode == 0, f"{done.stdout[-20_000:]}{installed}"


@pytest.mark.parametrize(("more", "chosen"), [((), TESTS), (("-r", TRITON), CLIENTS)])
def test_the_newest_versions_that_are_allowed_pass_the_tests_of_requests(
    tmp_path: Path, more: tuple[str, ...], chosen: tuple[str, ...]
) -> None:
    copy = copy_of_checkout(tmp_path / "gathernd")
    python = install(copy, ".venv", sys.executable, "--editable", ".[dev,otel,cloud,grpc]", *more)
    run(copy, python, *chosen)


def test_the_newest_versions_of_what_users_have_pass_the_tests_of_clients(tmp_path: Path) -> None:
    interpreter = other_python() or sys.executable  # the newest Python, if there is one: the newest NumPy wants it
    copy = copy_of_checkout(tmp_path / "gathernd")
    python = install(copy, ".venv", interpreter, "--editable", ".[dev,otel,cloud,grpc]")
    for environment, files in ENVIRONMENTS.items():
        install(copy, environment, interpreter, *(f"--requirements={file}" for file in files))
    # By pip, not uv: users set pip to find builds of torch for the CPU alone, which are far smaller.
    pins = (copy / "tests/examples/torch.txt").read_text().splitlines()
    (torch,) = (pin for pin in pins if pin.startswith("torch=="))
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-input", torch], check=True)
    run(copy, python, *OF_USERS, GATHERND_TEST_ALL="1", GATHERND_REQUIRE_ALL="1")
