"""The service is right with another Python, too: a part of the tests and the types hold there.

pyproject.toml promises several versions, and a checkout has one environment. `make other-python` makes a second one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SOAK
from tests.needs import ROOT, in_environment
from tests.other_python import other_python

TESTS = ("memory", "server", "store/test_catalogue.py")
"""Those that wait in the event loop, read with SQLite, and measure memory."""
COMPILED = (
    "client/test_event_loops.py", "grpc_api/test_stop.py", "http/test_uds.py", "kernels/test_arrays.py",
    "wire/test_safetensors.py",
)  # fmt: skip
"""In a soak also tests for which all functions are compiled with that Python."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def python() -> Path:
    if other_python() is None:
        pytest.skip("needs another Python than the one that runs the tests")
    found = in_environment(".venv-other/bin/python", "other-python")
    version = subprocess.run([found, "-V"], capture_output=True, text=True, check=True).stdout.split()[1]
    own = "{}.{}.".format(*sys.version_info)
    assert not version.startswith(own), "remove .venv-other: it has the version of the environment that runs the tests"
    return found


def run(*command: str | Path) -> None:
    """Run a command of that environment to a good end, with the samples of `make test`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GATHERND_", "PYTEST_"))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1140, check=False)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]


def test_tests_pass_with_another_python(python: Path) -> None:
    options = ("-q", "-rfE", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile")
    names = (*TESTS, *COMPILED) if SOAK else TESTS
    run(python, "-m", "pytest", *options, *(f"tests/{name}" for name in names))


@pytest.mark.soak
def test_types_are_right_with_another_python(python: Path) -> None:
    """NumPy's types, which differ with its version, are those of that environment."""
    run(python, "-m", "mypy", "--strict", "app", "clients/python")
