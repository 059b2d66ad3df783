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

from app import __version__
from tests.http import fork_server
from tests.http.server import Server

VARIABLES = {"GATHERND_PORT": "1", "PATH": "/nowhere"}
TELLS = """
import json, os, sys
print("here", file=sys.stderr, flush=True)
ids = os.getpid(), os.getsid(0)
print(json.dumps([sys.argv, os.getcwd(), dict(os.environ), *ids, sys.stdin.read(), __name__, sys.path[0]]))
"""


def start(folder: Path, *command: str) -> tuple[fork_server.ForkedProcess, Path]:
    log = folder / "log.txt"
    with log.open("wb") as file:
        return fork_server.start(command, folder, VARIABLES, file), log


def test_a_program_runs_with_what_it_was_given(tmp_path: Path) -> None:
    process, log = start(tmp_path, sys.executable, "-c", TELLS, "serve", "--port", "0")
    assert process.wait(60) == 0
    here, told = log.read_text().splitlines()
    arguments = ["-c", "serve", "--port", "0"]
    assert json.loads(told) == [arguments, str(tmp_path), VARIABLES, process.pid, process.pid, "", "__main__", ""]
    assert here == "here"


def test_modules_and_the_script_run_too(tmp_path: Path) -> None:
    process, log = start(tmp_path, fork_server.GATHERND, "version")
    assert process.wait(60) == 0
    assert log.read_text() == f"{__version__}\n"
    (tmp_path / "tells.py").write_text(TELLS)
    process, log = start(tmp_path, sys.executable, "-m", "tells", "serve")
    assert process.wait(60) == 0
    told = json.loads(log.read_text().splitlines()[1])
    assert (told[0][1:], told[-1]) == (["serve"], str(tmp_path))


def test_after_a_failure_another_fork_server_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not the one that has started servers of other tests
    monkeypatch.setattr(fork_server, "_servers", {})
    before, log = start(tmp_path, sys.executable, "-c", "import time; time.sleep(60)")
    with pytest.raises(TypeError):
        start(tmp_path, sys.executable, "-c", b"no text")  # type: ignore[arg-type]
    process, log = start(tmp_path, sys.executable, "-c", "print('well')")
    assert process.wait(60) == 0
    assert log.read_text() == "well\n"
    before.kill()
    assert before.wait(60) == 255


def test_its_end_is_told(tmp_path: Path) -> None:
    process, log = start(tmp_path, sys.executable, "-c", "import time; time.sleep(60)")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    process.kill()
    assert process.wait(60) == process.poll() == process.returncode == -signal.SIGKILL
    process.kill()  # nothing is left to get it
    process, log = start(tmp_path, sys.executable, "-c", "raise SystemExit(3)")
    assert process.wait(60) == 3
    process, log = start(tmp_path, sys.executable, "-c", "raise ValueError('none')")
    assert process.wait(60) == 1
    assert "ValueError: none" in log.read_text()


def test_open_files_are_those_of_a_new_process(tmp_path: Path) -> None:
    """Nothing of the fork server's stays open in what it starts, so that the end of either is noticed."""
    text = "import os; print([fd for fd in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{fd}')])"
    process, log = start(tmp_path, sys.executable, "-c", text)
    assert process.wait(60) == 0
    assert log.read_text() == "['0', '1', '2']\n"


@pytest.mark.parametrize(
    ("command", "environment", "can"),
    [
        ((sys.executable, "-m", "tests.http.faulty_app"), {}, True),
        ((fork_server.GATHERND, "serve"), {"GATHERND_WORKERS": "2", "OTEL_BSP_SCHEDULE_DELAY": "5"}, True),
        (("/somewhere/bin/gathernd", "serve"), {}, False),
        ((sys.executable, "a_script.py"), {}, False),
        (("sh", "-c", "ulimit -v 1; exec gathernd serve"), {}, False),
        ((fork_server.GATHERND, "serve"), {"PYTHONPATH": os.curdir}, False),
        ((fork_server.GATHERND, "serve"), {"OTEL_PROPAGATORS": "b3"}, False),
    ],
)
def test_what_is_to_change_the_imports_is_not_forked(
    command: tuple[str, ...], environment: Mapping[str, str], can: bool
) -> None:
    assert fork_server.can_start(command, environment) is can


@pytest.mark.parametrize(
    ("arguments", "variables", "loaded"),
    [
        (("serve", "--port", "0"), {}, True),
        (("warm",), {}, False),
        (("serve", "--kernel", "numpy"), {}, False),
        (("serve", "--workers=2"), {}, False),
        (("serve", "--port", "0", "--workers", "12"), {}, False),
        (("serve", "--workers", "1", "--port", "0"), {}, True),
        (("serve",), {"GATHERND_KERNEL": "numpy"}, False),
        (("serve",), {"GATHERND_CACHE_DIR": "/of/its/own"}, False),
    ],
)
def test_only_what_would_load_compiled_code_is_forked_with_it(
    arguments: tuple[str, ...], variables: Mapping[str, str], loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_loaded", set())
    fork_server.load_from(Path("/shared"))
    folder = fork_server.compiled_code(
        (fork_server.GATHERND, *arguments), {"GATHERND_CACHE_DIR": "/shared", **variables}
    )
    assert folder == ("/shared" if loaded else "")


@pytest.mark.parametrize(
    ("program", "loaded"),
    [
        (("-m", "tests.http.faulty_app", "slow"), True),
        (("-m", "tests.http.faulty_app", "counting"), False),
        (("-m", "tests.http.gpu_app"), True),
        (("-m", "tests.commands"), False),
        (("-c", "pass"), False),
    ],
)
def test_services_with_a_part_changed_have_it_too_unless_it_is_how_they_compile(
    program: tuple[str, ...], loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "_loaded", {"/shared"})
    folder = fork_server.compiled_code((sys.executable, *program, "--port", "0"), {"GATHERND_CACHE_DIR": "/shared"})
    assert folder == ("/shared" if loaded else "")


def test_a_server_that_is_forked_with_compiled_code_uses_it(warmed: Path, tmp_path: Path) -> None:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GATHERND_")}
    variables |= {"GATHERND_CACHE_DIR": str(warmed), "GATHERND_STORE_DIR": str(tmp_path / "store")}
    command = fork_server.GATHERND, "serve", "--port", "0", "--log-level", "debug"
    with (tmp_path / "log.txt").open("wb") as file:
        server = Server(fork_server.start(command, tmp_path, variables, file), tmp_path / "log.txt")
    server.wait_until_listening()
    server.wait_until_ready()
    assert "codec of requests ready" not in server.log_text(), "it was loaded before"
    assert "kernel of lookups ready after 0.00 s" in server.log_text()
    assert server.stop() == 0


@pytest.mark.parametrize(("end", "code"), [("", 0), ("sys.exit(3)", 3), ("sys.exit('no')", 1), ("1 / 0", 1)])
def test_a_program_ends_as_it_does_by_itself(tmp_path: Path, end: str, code: int) -> None:
    """What is registered for the end runs after threads have ended, and what was printed is there."""
    lines = (
        "import atexit, sys, threading, time",
        "atexit.register(print, 'registered')",
        "threading.Thread(target=lambda: print(time.sleep(0.1), 'thread')).start()",
        end,
    )
    process, log = start(tmp_path, sys.executable, "-c", "\n".join(lines), "serve")
    assert process.wait(60) == code
    printed = [line for line in log.read_text().splitlines() if line in {"None thread", "registered"}]
    assert printed == ["None thread", "registered"]
