"""The command `gathernd`: its own commands, and those that the service adds by entry points."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

import pytest
from typer.testing import CliRunner

from app.cli import run_service
from app.settings import TOPICS, Settings, topics
from gathernd_cli import command_line


def invoked(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(command_line.app, arguments, env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [
        ("call --help", {"app", "httpx", "numpy", "pydantic_settings"}),
        ("--help", {"httpx", "numba", "numpy", "fastapi", "pydantic_settings"}),
        ("serve --help", {"httpx", "numba", "numpy", "fastapi", "uvicorn"}),
    ],
)
def test_a_command_imports_only_what_it_needs(command: str, unneeded: set[str]) -> None:
    program = "import sys; from gathernd_cli.command_line import app; app(sys.argv[1:], standalone_mode=False); "
    program += "print({name.split('.')[0] for name in sys.modules})"
    command_words = [sys.executable, "-c", program, *command.split()]
    done = subprocess.run(command_words, capture_output=True, text=True, timeout=60, check=True)
    assert not unneeded & eval(done.stdout.splitlines()[-1])


def test_without_the_service_its_commands_are_named_as_those_of_another_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_line, "GROUP", "gathernd.commands.of.none")
    code, output = invoked("serve")
    assert code == 2
    assert (
        "No such command 'serve'. The service's commands come with the distribution gathernd-server: in a checkout"
        in output
    )
    assert invoked("--help")[1].count("│ serve") == 0


def test_a_near_command_or_flag_is_proposed() -> None:
    for words, near in ((("serv",), "'serve'"), (("tensros",), "'tensors'"), (("serve", "--max-queu"), "--max-queue")):
        code, output = invoked(*words)
        assert (code, near in output) == (2, True), output


def test_the_version_is_the_distributions() -> None:
    assert invoked("--version") == (0, f"gathernd {metadata.version('gathernd')}\n")
    assert invoked("version") == (0, f"{metadata.version('gathernd')}\n")


def test_the_help_of_serve_has_every_setting_once_under_its_topic() -> None:
    code, output = invoked("serve", "--help")
    assert code == 0
    panels = re.findall(r"^╭─ (.+?) ─+╮\n(.*?)^╰", output, re.MULTILINE | re.DOTALL)
    flags = {title: re.findall(r"^│ --([\w-]+)", text, re.MULTILINE) for title, text in panels}
    shown = {name.replace("-", "_"): title for title, names in flags.items() for name in names}
    assert shown == {"help": "Options", **topics()}
    assert [title for title, _ in panels] == ["Options", *TOPICS.values()]
    assert "numba|numpy" in output
    assert "Maximum size of a JSON body, as sent and after decompression (default: 64MiB)." in output


def test_flags_of_serve_are_read_as_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []
    monkeypatch.setattr(run_service, "run_service", seen.append)
    flags = ("--allowed-hosts", "a", "--allowed-hosts", "b", "--max-json-bytes=3MiB", "--access-log")
    assert invoked("serve", *flags) == (0, "")
    (settings,) = seen
    assert settings == Settings(allowed_hosts=("a", "b"), max_json_bytes="3MiB", access_log=True)
