"""What a command says of a variable whose value cannot be used."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from app.cli import calibrate_command, keys_command, openapi_command, store_command, warm_command

COMMANDS = {
    "keys ls": (keys_command.app, ["ls"]),
    "store check": (store_command.app, ["check"]),
    "store backup": (store_command.app, ["backup", "folder"]),
    "calibrate": (calibrate_command.app, []),
    "openapi": (openapi_command.app, []),
    "warm": (warm_command.app, []),
}


@pytest.mark.parametrize(("command", "arguments"), COMMANDS.values(), ids=COMMANDS)
def test_a_variable_that_cannot_be_used_is_told_in_a_line(command: typer.Typer, arguments: list[str]) -> None:
    done = CliRunner().invoke(command, arguments, env={"GATHERND_PORT": "http"})
    assert done.exit_code == 2
    assert done.stderr.startswith("gathernd: GATHERND_PORT: Input should be a valid integer")
    assert len(done.stderr.splitlines()) == 1
