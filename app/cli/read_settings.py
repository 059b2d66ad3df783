"""Read the settings for a command, and report each invalid one in one line instead of a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import typer
from pydantic import ValidationError

from app.near_name import near_name
from app.server.exit_codes import WRONG_SETTINGS
from app.settings import SETTING_NAMES, Settings

_PREFIX: Final = "GATHERND_"
_OF_OTHERS: Final = re.compile(r"URL|API_KEY|(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP)\w*)?)")
"""Names, without the prefix, of the client's variables and of those that Kubernetes sets for a Service
`gathernd[-…]`.
"""


def read_settings(**given: Any) -> Settings:
    """Read the settings from the environment and from `given`, the arguments of `Settings`.

    If some are invalid, print a line about each and exit with code 2. The line shows the name of the flag if flags are
    in use.
    """
    try:
        return Settings(**given)
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(map(str, problem["loc"]))
            # Read the message of our own checks from the context, because pydantic adds a prefix to it in `msg`.
            why = problem["ctx"]["error"] if problem["type"] == "value_error" else problem["msg"]
            flag, variable = f"--{name.replace('_', '-')}", f"GATHERND_{name.upper()}"
            shown = f"{flag} ({variable})" if "_cli_parse_args" in given else variable
            typer.echo(f"gathernd: {shown}: {why}", err=True)
        raise typer.Exit(WRONG_SETTINGS) from None


def warn_of_misspelled_variables(environment: Iterable[str]) -> None:
    """Print a line about each environment variable whose name looks like a misspelled setting."""
    for variable in environment:
        name = variable.removeprefix(_PREFIX)
        if variable.startswith(_PREFIX) and variable not in SETTING_NAMES and not _OF_OTHERS.fullmatch(name):
            near = near_name(name, Settings.model_fields)
            if near is not None:
                meant = f"{_PREFIX}{near.upper()}"
                typer.echo(f"gathernd: {variable} is not a setting and has no effect; did you mean {meant}?", err=True)
