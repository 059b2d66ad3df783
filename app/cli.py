"""The command `gathernd`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import orjson
import typer
from pydantic import ValidationError

from app import __version__
from app.api.control import openapi_document
from app.main import create_app, warm
from app.serving import export, serve, serve_workers
from app.settings import Settings, settings_table

app = typer.Typer(
    name="gathernd",
    help="A gather inference service: ONNX GatherND and Gather, OpenVINO GatherND-8.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _settings(arguments: list[str]) -> Settings:
    try:
        return Settings(_cli_parse_args=arguments, _cli_prog_name="gathernd serve")
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(map(str, problem["loc"]))
            typer.echo(f"gathernd: --{name.replace('_', '-')} (GATHERND_{name.upper()}): {problem['msg']}", err=True)
        raise typer.Exit(2) from None


@app.command(
    "serve",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def serve_command(context: typer.Context) -> None:
    """Serve over HTTP. Every setting GATHERND_NAME is also a flag --name; --help lists them."""
    settings = _settings(list(context.args))
    if settings.workers > 1:
        export(settings)
        serve_workers(settings)
    else:
        serve(settings, create_app(settings))


@app.command("warm")
def warm_command(
    cache_dir: Annotated[
        Path | None, typer.Option(help="Folder of compiled kernels; default GATHERND_CACHE_DIR.")
    ] = None,
) -> None:
    """Compile the kernels into the cache folder, so that the next start is fast."""
    warm(cache_dir or Settings().cache_dir, lambda name: typer.echo(f"ready: {name}"))


@app.command("openapi")
def openapi_command() -> None:
    """Print the OpenAPI file of the service."""
    document = openapi_document(create_app(Settings()).control)  # type: ignore[arg-type]
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")


@app.command("settings")
def settings_command() -> None:
    """Print every setting as a Markdown table."""
    typer.echo(settings_table())


@app.command("version")
def version_command() -> None:
    """Print the version."""
    typer.echo(__version__)


def main() -> None:
    """Entry point."""
    app()
