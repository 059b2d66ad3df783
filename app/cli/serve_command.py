"""`gathernd serve`: run the service. Every setting is a flag."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import ByteSize
from pydantic.fields import FieldInfo
from rich.markup import escape

from app.cli.read_settings import read_settings, warn_of_misspelled_variables
from app.settings import Settings, default_text, topics
from gathernd_cli.uncollected_imports import uncollected_imports

app = typer.Typer(add_completion=False)


def serve_command(**given: list[str] | bool | None) -> None:
    """Run the service. Every flag is also an environment variable: --max-queue is GATHERND_MAX_QUEUE."""
    arguments = []
    for name, value in given.items():
        flag = f"--{name.replace('_', '-')}"
        arguments += [flag] if value is True else [f"{flag}={text}" for text in value or ()]
    settings = read_settings(_cli_parse_args=arguments, _cli_prog_name="gathernd serve")
    warn_of_misspelled_variables(os.environ)
    with uncollected_imports():
        from app.cli.run_service import run_service  # noqa: PLC0415  (imports the whole service)
    run_service(settings)


def _flags() -> Iterator[inspect.Parameter]:
    """Yield a parameter for each setting: a switch, or a list of texts. `Settings` parses and checks them."""
    for name, topic in topics().items():
        field = Settings.model_fields[name]
        is_switch = field.annotation is bool
        option = typer.Option(
            f"--{name.replace('_', '-')}",
            help=_help(field),
            rich_help_panel=topic,
            metavar=None if is_switch else _metavar(field),
            show_default=False,
        )
        annotation = Annotated[bool, option] if is_switch else Annotated[list[str] | None, option]
        default = False if is_switch else None
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _help(field: FieldInfo) -> str:
    text, default = field.description or "", "" if field.annotation is bool else default_text(field)
    return escape(f"{text.removesuffix('.')} (default: {default})." if default else text)


def _metavar(field: FieldInfo) -> str:
    """Return the placeholder for a value in the help: the allowed words, or the name of the type."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    if get_origin(field.annotation) is Literal:
        return "|".join(map(str, kinds))
    kind: Any = kinds[0] if kinds else field.annotation
    return {int: "NUMBER", float: "NUMBER", ByteSize: "BYTES", Path: "PATH"}.get(kind, "TEXT")


serve_command.__signature__ = inspect.Signature(list(_flags()))  # type: ignore[attr-defined]
serve_command.__annotations__ = {flag.name: flag.annotation for flag in _flags()}
app.command("serve")(serve_command)
