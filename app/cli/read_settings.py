"""The settings as a command reads them: what is wrong with one is said in a line, in place of a traceback."""

from __future__ import annotations

from typing import Any

import typer
from pydantic import ValidationError

from app.server.exit_codes import WRONG_SETTINGS
from app.settings import Settings


def read_settings(**given: Any) -> Settings:
    """The settings of the environment and of `given`, the arguments of `Settings`.

    Wrong ones end the command with exit code 2 and a line about each, which names its flag where it has one.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(map(str, problem["loc"]))
            # The text of one of our own checks, before which pydantic puts words of its own.
            why = problem["ctx"]["error"] if problem["type"] == "value_error" else problem["msg"]
            flag, variable = f"--{name.replace('_', '-')}", f"GATHERND_{name.upper()}"
            shown = f"{flag} ({variable})" if "_cli_parse_args" in given else variable
            typer.echo(f"gathernd: {shown}: {why}", err=True)
        raise typer.Exit(WRONG_SETTINGS) from None
