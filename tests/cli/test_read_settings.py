"""What a command says of a variable whose value cannot be used."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from app.cli import calibrate_command, keys_command, store_command, warm_command
from app.cli.read_settings import warn_of_misspelled_variables
from app.settings import SETTING_NAMES

COMMANDS = {
    "keys ls": (keys_command.app, ["ls"]),
    "store check": (store_command.app, ["check"]),
    "store backup": (store_command.app, ["backup", "folder"]),
    "calibrate": (calibrate_command.app, []),
    "warm": (warm_command.app, []),
}


@pytest.mark.parametrize(("command", "arguments"), COMMANDS.values(), ids=COMMANDS)
def test_a_variable_that_cannot_be_used_is_told_in_a_line(command: typer.Typer, arguments: list[str]) -> None:
    done = CliRunner().invoke(command, arguments, env={"GATHERND_PORT": "http"})
    assert done.exit_code == 2
    assert done.stderr.startswith("gathernd: GATHERND_PORT: Input should be a valid integer")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("given", "meant"),
    [("GATHERND_API_KEY_FILE", "GATHERND_API_KEYS_FILE"), ("GATHERND_MAX_BODYBYTES", "GATHERND_MAX_BODY_BYTES")],
)
def test_a_variable_that_is_nearly_a_setting_is_told(
    given: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be as if it had not been set: a service without keys, for one."""
    warn_of_misspelled_variables([given])
    assert capsys.readouterr().err == f"gathernd: {given} is not a setting and has no effect; did you mean {meant}?\n"


def test_variables_of_others_are_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The client's, those that Kubernetes makes of a Service, and what is like no setting."""
    of_kubernetes = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_GRPC", "PORT_80_TCP_ADDR", "PODS_PORT"]
    others = ["GATHERND_URL", "GATHERND_API_KEY", "GATHERND_TEST_ALL", "HOME", "MAX_BODYBYTES"]
    warn_of_misspelled_variables([*SETTING_NAMES, *others, *(f"GATHERND_{name}" for name in of_kubernetes)])
    assert capsys.readouterr().err == ""
