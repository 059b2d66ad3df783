"""All commands of `gathernd`: those of the client, and those that other distributions add.

A distribution adds a command with an entry point of the group `gathernd.commands`. The entry point's name is the
command's name; its object is a `typer.Typer` without completion, with one command or several. The distribution of the
service, `gathernd-server`, adds `serve`, `keys` and others in this way. The list of commands shows the first paragraph
of the module's docstring, omitting the prefix "`gathernd NAME`:". The module is imported only when the command is run
or its help is shown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from .uncollected_imports import uncollected_imports

GROUP: Final = "gathernd.commands"
CLIENT_COMMANDS: Final = {
    "aliases": "gathernd_cli.aliases_command:app",
    "backward": "gathernd_cli.backward_command:app",
    "call": "gathernd_cli.call_command:app",
    "lookup": "gathernd_cli.lookup_command:app",
    "status": "gathernd_cli.status_command:app",
    "tensors": "gathernd_cli.tensors_command:app",
}
"""The client's own commands, in the notation of entry points: MODULE:OBJECT."""
_NAMED: Final = re.compile(r"`gathernd [^`]*`: ")


def flags_without_type(command: Any, params: Iterable[Any]) -> None:
    """Hide the type of flags in the help of a command and its subcommands, because flags take no value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    for own in getattr(command, "commands", {}).values():
        flags_without_type(own, own.get_params(typer.Context(own)))


class LazyCommand(TyperCommand):
    """A command whose module is imported only when the command is called or its help is shown."""

    def __init__(self, name: str, target: str) -> None:
        super().__init__(name, callback=None)
        self.target = target

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Import the real command and return its context."""
        from pkgutil import resolve_name  # noqa: PLC0415  (not needed if no command is called)

        with uncollected_imports():
            command = typer.main.get_command(resolve_name(self.target))
        command.name = self.name
        flags_without_type(command, command.get_params(typer.Context(command)))
        return command.make_context(info_name, args, parent, **extra)


def summary(target: str) -> str:
    """Return the first paragraph of the docstring of the target's module, or "" if its source cannot be read.

    Imports the packages around the module, but not the module.
    """
    from importlib.util import find_spec  # noqa: PLC0415

    spec = find_spec(target.partition(":")[0])
    source = getattr(spec.loader, "get_source", lambda _: None)(spec.name) if spec is not None else None
    docstring = None if source is None else ast.get_docstring(ast.parse(source))
    paragraph = " ".join((docstring or "").partition("\n\n")[0].split())
    text = _NAMED.sub("", paragraph)
    return text[:1].upper() + text[1:]


def added_commands() -> dict[str, str]:
    """Return the commands of other distributions, in the format of `CLIENT_COMMANDS`."""
    from importlib import metadata  # noqa: PLC0415

    return {entry.name: entry.value for entry in metadata.entry_points(group=GROUP)}


def _has_near_command(name: str, commands: Iterable[str]) -> bool:
    """Return whether typer would suggest one of `commands` for `name`."""
    from difflib import get_close_matches  # noqa: PLC0415

    return bool(get_close_matches(name, list(commands)))


class CommandsOnDemand(TyperGroup):
    """The group of all commands.

    It imports a command only when the command is used, and reads entry points only if necessary.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the flags that are allowed before the command's name."""
        params = super().get_params(ctx)
        for param in params:
            param.metavar = ""
        return params

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command with this name, or None.

        Fails with a usage error if only the service could provide the command.
        """
        if cmd_name not in self.commands and cmd_name in CLIENT_COMMANDS:
            self._add(CLIENT_COMMANDS)
        elif cmd_name not in self.commands:
            added = added_commands()
            self._add(CLIENT_COMMANDS | added)  # typer suggests the nearest of these for an unknown name
            if not added and not _has_near_command(cmd_name, self.commands):
                ctx.fail(
                    f"No such command {cmd_name!r}. The service's commands come with the distribution "
                    "gathernd-server: in a checkout use .venv/bin/gathernd."
                )
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        self._add(CLIENT_COMMANDS | added_commands())
        for command in self.commands.values():
            if isinstance(command, LazyCommand) and command.help is None:
                command.help = summary(command.target)
        return sorted(super().list_commands(ctx))

    def _add(self, targets: dict[str, str]) -> None:
        for name, target in targets.items():
            if name not in self.commands:
                self.add_command(LazyCommand(name, target))


app = typer.Typer(
    name="gathernd",
    cls=CommandsOnDemand,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # noqa: PLC0415

        typer.echo(f"gathernd {metadata.version('gathernd')}")
        raise typer.Exit


@app.callback()
def gathernd(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A gather inference service: ONNX GatherND, Gather and GatherElements, OpenVINO GatherND-8 and Gather-8."""


@app.command("version")
def version() -> None:
    """Print only the version number."""
    from importlib import metadata  # noqa: PLC0415

    typer.echo(metadata.version("gathernd"))
