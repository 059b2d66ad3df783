"""The command `gathernd`: its own commands, and those that the service adds by entry points."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gathernd_cli import command_line


def invoked(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(command_line.app, arguments, env={"COLUMNS": "200"})
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("command", "unneeded"),
    [("tensors", {"app", "httpx", "numba"}), ("settings", {"httpx", "numba"}), ("keys", {"httpx", "numba"})],
)
def test_a_command_imports_only_what_it_needs(command: str, unneeded: set[str]) -> None:
    program = "import sys; from gathernd_cli.command_line import app; app(sys.argv[1:], standalone_mode=False); "
    program += "print({name.split('.')[0] for name in sys.modules})"
    command_words = [sys.executable, "-c", program, command, "--help"]
    done = subprocess.run(command_words, capture_output=True, text=True, timeout=60, check=True)
    assert not unneeded & eval(done.stdout.splitlines()[-1])


def test_the_nearest_command_is_proposed_for_a_misspelt_one_of_the_service() -> None:
    code, output = invoked("serv")
    assert code == 2
    assert "Did you mean 'serve'?" in output


def test_without_the_service_its_commands_are_named_as_those_of_another_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_line, "GROUP", "gathernd.commands.of.none")
    code, output = invoked("serve")
    assert code == 2
    assert "No such command 'serve'. The service's own come with the distribution gathernd-server." in output
    assert invoked("--help")[1].count("│ serve") == 0


def test_a_group_of_commands_of_the_service_has_its_name_in_the_help() -> None:
    code, output = invoked("--help")
    assert code == 0
    assert "│ keys " in output
