"""All commands of `gathernd`: those of the client, and those that other distributions add.

A distribution adds a command by an entry point of the group `gathernd.commands`: its name is the command's, its object
a `typer.Typer` without completion, of one command or of several. The service, `gathernd-server`, adds `serve`, `keys`
and others this way.
"""

from __future__ import annotations

import gc
from importlib import metadata
from typing import Any, Final

import typer
from typer.core import TyperGroup

from . import call_command, tensors_command

GROUP: Final = "gathernd.commands"


def _load(entry: metadata.EntryPoint) -> Any:
    """What the entry point names. Modules stay: the collector is spared them, a tenth of the start of the service."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return entry.load()
    finally:
        gc.freeze()
        if collecting:
            gc.enable()


class AddedCommands(TyperGroup):
    """A group whose further commands are entry points, each imported when it is used or listed."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, or None. Ends with a usage error where no service is installed to have it."""
        if cmd_name not in self.commands:
            added = metadata.entry_points(group=GROUP)
            if not added:
                ctx.fail(f"No such command {cmd_name!r}. The service's own come with the distribution gathernd-server.")
            # For an unknown name all are imported: typer proposes the nearest of those that it has.
            for entry in added.select(name=cmd_name) or added:
                command = typer.main.get_command(_load(entry))
                command.name = entry.name
                self.add_command(command)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands."""
        for entry in metadata.entry_points(group=GROUP):
            self.get_command(ctx, entry.name)
        return super().list_commands(ctx)


app = typer.Typer(
    name="gathernd",
    cls=AddedCommands,
    help="A gather inference service: ONNX GatherND and Gather, OpenVINO GatherND-8.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("call")(call_command.call)
app.add_typer(tensors_command.app, name="tensors")


@app.command("version")
def version() -> None:
    """Print the version."""
    typer.echo(metadata.version("gathernd"))
