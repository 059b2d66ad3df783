"""The command `gathernd`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import orjson
import typer
from pydantic import ValidationError

from app import __version__, commands, selection
from app.api.fastapi_app import openapi_document
from app.kernels.device import NoDevice
from app.main import allow_gpu, create_app
from app.security import api_keys
from app.server.listening_sockets import CannotListen
from app.server.serve import serve
from app.server.supervisor import serve_workers
from app.server.tls import BadTls
from app.settings import Settings, settings_table
from app.telemetry.tracing import NoTracing
from app.warmup import warm

app = typer.Typer(
    name="gathernd",
    help="A gather inference service: ONNX GatherND and Gather, OpenVINO GatherND-8.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
keys_app = typer.Typer(help="API keys: the file that GATHERND_API_KEYS_FILE names.", no_args_is_help=True)
app.add_typer(keys_app, name="keys")
app.command("call")(commands.call)
app.add_typer(commands.tensors_app, name="tensors")
app.command("calibrate")(selection.calibrate)
app.command("explain")(selection.explain)


def _settings(arguments: list[str]) -> Settings:
    try:
        return Settings(_cli_parse_args=arguments, _cli_prog_name="gathernd serve")
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(map(str, problem["loc"]))
            typer.echo(f"gathernd: --{name.replace('_', '-')} (GATHERND_{name.upper()}): {problem['msg']}", err=True)
        raise typer.Exit(2) from None


def _check_gpu(settings: Settings) -> None:
    try:
        allow_gpu(settings)
    except NoDevice as reason:
        typer.echo(f"gathernd: --device (GATHERND_DEVICE) gpu: {reason}", err=True)
        raise typer.Exit(2) from None


@app.command(
    "serve",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
)
def serve_command(context: typer.Context) -> None:
    """Serve over HTTP. Every setting GATHERND_NAME is also a flag --name; --help lists them."""
    settings = _settings(list(context.args))
    if settings.device == "gpu":
        _check_gpu(settings)
    try:
        if settings.workers > 1:
            raise typer.Exit(serve_workers(settings))
        serve(settings, create_app(settings))
    except api_keys.BadKeysFile as error:
        typer.echo(f"gathernd: --api-keys-file (GATHERND_API_KEYS_FILE) {settings.api_keys_file}: {error}", err=True)
        raise typer.Exit(2) from None
    except NoTracing as error:
        typer.echo(f"gathernd: --otlp-endpoint (GATHERND_OTLP_ENDPOINT): {error}", err=True)
        raise typer.Exit(2) from None
    except BadTls as error:
        typer.echo(f"gathernd: --tls-cert (GATHERND_TLS_CERT): {error}", err=True)
        raise typer.Exit(2) from None
    except CannotListen as error:
        typer.echo(f"gathernd: {error}", err=True)
        raise typer.Exit(1) from None


@app.command("warm")
def warm_command(
    cache_dir: Annotated[
        Path | None, typer.Option(help="Folder of compiled kernels; default GATHERND_CACHE_DIR.")
    ] = None,
) -> None:
    """Compile kernels and readers into the cache folder, so that the next start is fast."""
    warm(cache_dir or Settings().cache_dir, lambda name: typer.echo(f"ready: {name}"))


KeysFile = Annotated[
    Path | None, typer.Option("--file", help="The keys file; default GATHERND_API_KEYS_FILE.", show_default=False)
]


class KeyScope(Enum):
    """`app.security.api_keys.Scope` in the form that the command line library reads."""

    GATHER = "gather"
    TENSORS = "tensors"


@contextmanager
def _keys_file(given: Path | None) -> Iterator[Path]:
    path = given or Settings().api_keys_file
    if path is None:
        typer.echo("gathernd: which keys file? Set GATHERND_API_KEYS_FILE or give --file", err=True)
        raise typer.Exit(2)
    try:
        yield path
    except (api_keys.BadKeysFile, OSError) as error:
        typer.echo(f"gathernd: {path}: {error.strerror if isinstance(error, OSError) else error}", err=True)
        raise typer.Exit(1) from None


@keys_app.command("add")
def keys_add(
    label: Annotated[str, typer.Argument(help="What people call the key: letters, digits and . _ @ -")],
    scope: Annotated[
        list[KeyScope] | None,
        typer.Option(
            help="What the key may do, once for each; default gather. gather: use the service; tensors: change tensors."
        ),
    ] = None,
    file: KeysFile = None,
) -> None:
    """Make a key and print it, this once. Only its SHA-256 is kept. A running service takes it within a second."""
    with _keys_file(file) as path:
        scopes = [name for name in api_keys.SCOPES if KeyScope(name) in (scope or [KeyScope.GATHER])]
        text = api_keys.add(path, label, scopes)
    typer.echo(text)


@keys_app.command("ls")
def keys_ls(file: KeysFile = None) -> None:
    """List the keys: label, scopes, start of the SHA-256."""
    with _keys_file(file) as path:
        for row in api_keys.described(api_keys.read(path)):
            typer.echo("\t".join(row.values()))


@keys_app.command("rm")
def keys_rm(label: Annotated[str, typer.Argument(help="Label of the key.")], file: KeysFile = None) -> None:
    """Remove a key. A running service refuses it within a second."""
    with _keys_file(file) as path:
        api_keys.remove(path, label)


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


if __name__ == "__main__":
    main()
