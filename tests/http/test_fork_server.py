"""Servers that are forked run as others do."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.http import fork_server

VARIABLES = {"GATHERND_PORT": "1", "PATH": "/nowhere"}
TELLS = """
import json, os, sys
print("here", file=sys.stderr, flush=True)
print(json.dumps([sys.argv, os.getcwd(), dict(os.environ), os.getpid(), os.getsid(0), sys.stdin.read(), __name__]))
"""


def start(folder: Path, *command: str) -> tuple[fork_server.ForkedProcess, Path]:
    log = folder / "log.txt"
    with log.open("wb") as file:
        return fork_server.start(command, folder, VARIABLES, file), log


def test_a_program_runs_with_what_it_was_given(tmp_path: Path) -> None:
    process, log = start(tmp_path, sys.executable, "-c", TELLS, "serve", "--port", "0")
    assert process.wait(20) == 0
    here, told = log.read_text().splitlines()
    arguments = ["-c", "serve", "--port", "0"]
    assert json.loads(told) == [arguments, str(tmp_path), VARIABLES, process.pid, process.pid, "", "__main__"]
    assert here == "here"


def test_modules_and_scripts_run_too(tmp_path: Path) -> None:
    script = tmp_path / "gathernd"
    script.write_text(TELLS)
    process, log = start(tmp_path, str(script), "serve")
    assert process.wait(20) == 0
    assert json.loads(log.read_text().splitlines()[1])[0] == [str(script), "serve"]
    process, log = start(tmp_path, sys.executable, "-m", "json.tool", "--help")
    assert process.wait(20) == 0
    assert "usage: " in log.read_text()


def test_its_end_is_told(tmp_path: Path) -> None:
    process, log = start(tmp_path, sys.executable, "-c", "import time; time.sleep(60)")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.kill()
    assert process.wait(20) == process.poll() == process.returncode == -signal.SIGKILL
    process.kill()  # nothing is left to get it
    process, log = start(tmp_path, sys.executable, "-c", "raise SystemExit(3)")
    assert process.wait(20) == 3
    process, log = start(tmp_path, sys.executable, "-c", "raise ValueError('none')")
    assert process.wait(20) == 1
    assert "ValueError: none" in log.read_text()


def test_open_files_are_those_of_a_new_process(tmp_path: Path) -> None:
    """Nothing of the fork server's stays open in what it starts, so that the end of either is noticed."""
    text = "import os; print([fd for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}')])"
    process, log = start(tmp_path, sys.executable, "-c", text)
    assert process.wait(20) == 0
    assert log.read_text() == "['0', '1', '2']\n"


@pytest.mark.parametrize(
    ("command", "environment", "can"),
    [
        ((sys.executable, "-m", "tests.http.faulty_app"), {}, True),
        (("/somewhere/bin/gathernd", "serve"), {"GATHERND_WORKERS": "2"}, True),
        (("sh", "-c", "ulimit -v 1; exec gathernd serve"), {}, False),
        (("gathernd", "serve"), {"PYTHONPATH": os.curdir}, False),
    ],
)
def test_what_is_to_change_the_imports_is_not_forked(
    command: tuple[str, ...], environment: Mapping[str, str], can: bool
) -> None:
    assert fork_server.can_start(command, environment) is can
