"""`gathernd serve`: serves over HTTP, with every setting as a flag."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic import ByteSize
from pydantic.fields import FieldInfo

from app.cli.read_settings import read_settings, tell_misspelt_variables
from app.settings import Settings, default_text, topics
from gathernd_cli.uncollected_imports import uncollected_imports

app = typer.Typer(add_completion=False)


def serve_command(**given: list[str] | None) -> None:
    """Serve over HTTP. Every flag is also a variable: --max-queue is GATHERND_MAX_QUEUE."""
    arguments = [f"--{name.replace('_', '-')}={text}" for name, texts in given.items() for text in texts or ()]
    settings = read_settings(_cli_parse_args=arguments, _cli_prog_name="gathernd serve")
    tell_misspelt_variables(os.environ)
    with uncollected_imports():
        from app.cli.run_service import run_service  # noqa: PLC0415  (imports the whole service)
    run_service(settings)


def _flags() -> Iterator[inspect.Parameter]:
    """A parameter for each setting. Its values are handed on as they are: `Settings` reads and checks them."""
    for name, topic in topics().items():
        field = Settings.model_fields[name]
        option = typer.Option(
            f"--{name.replace('_', '-')}",
            help=_help(field),
            rich_help_panel=topic,
            metavar=_metavar(field),
            show_default=False,
        )
        annotation = Annotated[list[str] | None, option]
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _help(field: FieldInfo) -> str:
    text, default = field.description or "", default_text(field)
    return f"{text.removesuffix('.')} (default: {default})." if default else text


def _metavar(field: FieldInfo) -> str:
    """What a value looks like: the words that may stand there, or the name of the type."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    if get_origin(field.annotation) is Literal:
        return "|".join(map(str, kinds))
    kind: Any = kinds[0] if kinds else field.annotation
    return {int: "NUMBER", float: "NUMBER", bool: "true|false", ByteSize: "BYTES", Path: "PATH"}.get(kind, "TEXT")


serve_command.__signature__ = inspect.Signature(list(_flags()))  # type: ignore[attr-defined]
serve_command.__annotations__ = {flag.name: flag.annotation for flag in _flags()}
app.command("serve")(serve_command)
