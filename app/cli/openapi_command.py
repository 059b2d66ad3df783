"""`gathernd openapi`: print the OpenAPI document of the service, openapi/openapi.json."""

from __future__ import annotations

import sys

import orjson
import typer

from app.api.openapi_document import openapi_document

app = typer.Typer(add_completion=False)


@app.command("openapi")
def openapi_command() -> None:
    """Print the OpenAPI document of the service."""
    sys.stdout.buffer.write(orjson.dumps(openapi_document(), option=orjson.OPT_INDENT_2) + b"\n")
