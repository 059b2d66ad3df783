"""`make serve` listens where its caller said, whichever way it was said."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from app.settings import Settings

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs the Debian package make")


def served(monkeypatch: pytest.MonkeyPatch, *arguments: str, **variables: str) -> tuple[str, int]:
    """Host and port of the service that `make serve` with these arguments and variables would start."""
    for name in [name for name in os.environ if name.startswith(("GATHERND_", "MAKE")) or name in ("HOST", "PORT")]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    done = subprocess.run(
        ["make", "--dry-run", "serve", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    command = shlex.split(done.stdout.splitlines()[-1])
    flags = command[command.index("serve") + 1 :]
    settings = Settings(_cli_parse_args=flags)
    return settings.host, settings.port


def test_make_serve_listens_on_loopback_port_8080_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch) == ("127.0.0.1", 8080)


def test_make_serve_heeds_the_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch, GATHERND_PORT="18099", GATHERND_HOST="127.0.0.2") == ("127.0.0.2", 18099)


def test_make_serve_heeds_port_and_host_on_its_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch, "PORT=18099", "HOST=127.0.0.2") == ("127.0.0.2", 18099)


def test_the_command_line_of_make_beats_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {"GATHERND_PORT": "18099", "GATHERND_HOST": "127.0.0.2", "PORT": "18098"}
    assert served(monkeypatch, "PORT=18097", "HOST=::1", **variables) == ("::1", 18097)


def test_port_in_the_environment_counts_where_no_setting_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(monkeypatch, PORT="18098") == ("127.0.0.1", 18098)
    assert served(monkeypatch, PORT="18098", GATHERND_PORT="18099") == ("127.0.0.1", 18099)


def test_host_in_the_environment_is_the_shells_and_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """csh and others export the machine's name under it."""
    assert served(monkeypatch, HOST="some-machine") == ("127.0.0.1", 8080)


def pins(lock: str | Path) -> dict[str, str]:
    """The versions of packages in a lock; of one that depends on Python's version, the last."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", (ROOT / lock).read_text(), re.MULTILINE))


def test_grpc_is_tested_in_the_versions_that_its_users_install() -> None:
    users, tests = pins("requirements/grpc.lock"), pins("requirements/dev.lock")
    assert [tests[name] for name in ("grpcio", "protobuf")] == [users[name] for name in ("grpcio", "protobuf")]


def test_all_locks_have_one_release_of_grpc() -> None:
    locks = [*(ROOT / "requirements").glob("*.lock"), *ROOT.glob("tests/*/*/requirements.lock")]
    found = {str(lock.relative_to(ROOT)): pins(lock).get("grpcio") for lock in locks}
    assert set(found.values()) - {None} == {pins("requirements/grpc.lock")["grpcio"]}, found
