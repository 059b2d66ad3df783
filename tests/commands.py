"""The commands that `gathernd` has."""

from __future__ import annotations

from functools import cache

from typer.main import get_command

from gathernd_cli.command_line import CommandsOnDemand, app


@cache
def command_names() -> frozenset[str]:
    """The names of all commands, the client's and the service's; a group of commands is one."""
    group = get_command(app)
    assert isinstance(group, CommandsOnDemand)
    return frozenset(group.list_commands(None))
