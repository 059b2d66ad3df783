"""`gathernd openapi`: the file openapi/openapi.json."""

from __future__ import annotations

import sys

import orjson
import typer

from app.api.openapi_document import openapi_document
from app.cli.read_settings import read_settings
from app.main import create_app

app = typer.Typer(add_completion=False)


@app.command("openapi")
def openapi_command() -> None:
    """Print the OpenAPI file of the service."""
    document = openapi_document(create_app(read_settings()).control)  # type: ignore[arg-type]
    sys.stdout.buffer.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
