"""`gathernd serve`: the settings of the command line and environment, then one process or several that serve."""

from __future__ import annotations

import typer
from pydantic import ValidationError

from app.dispatch.gpu_discovery import allow_gpu
from app.kernels.gpu_interface import NoDevice
from app.main import create_app
from app.security.api_keys import BadKeysFile
from app.server.exit_codes import NOT_AVAILABLE, WRONG_SETTINGS
from app.server.listening_sockets import CannotListen
from app.server.tls import BadTls
from app.server_from_settings import serve, serve_workers
from app.settings import Settings
from app.telemetry.tracing import NoTracing

app = typer.Typer(add_completion=False)


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
    except (BadKeysFile, NoTracing, BadTls) as error:
        typer.echo(f"gathernd: {_flag(error, settings)}: {error}", err=True)
        raise typer.Exit(WRONG_SETTINGS) from None
    except CannotListen as error:
        typer.echo(f"gathernd: {error}", err=True)
        raise typer.Exit(NOT_AVAILABLE) from None


def _flag(error: BadKeysFile | NoTracing | BadTls, settings: Settings) -> str:
    """The flag and variable of the setting that an error is about."""
    if isinstance(error, BadKeysFile):
        return f"--api-keys-file (GATHERND_API_KEYS_FILE) {settings.api_keys_file}"
    if isinstance(error, NoTracing):
        return "--otlp-endpoint (GATHERND_OTLP_ENDPOINT)"
    return "--tls-cert (GATHERND_TLS_CERT)"


def _settings(arguments: list[str]) -> Settings:
    try:
        return Settings(_cli_parse_args=arguments, _cli_prog_name="gathernd serve")
    except ValidationError as error:
        for problem in error.errors():
            name = "_".join(map(str, problem["loc"]))
            typer.echo(f"gathernd: --{name.replace('_', '-')} (GATHERND_{name.upper()}): {problem['msg']}", err=True)
        raise typer.Exit(WRONG_SETTINGS) from None


def _check_gpu(settings: Settings) -> None:
    try:
        allow_gpu(settings.device, settings.workers)
    except NoDevice as reason:
        typer.echo(f"gathernd: --device (GATHERND_DEVICE) gpu: {reason}", err=True)
        raise typer.Exit(WRONG_SETTINGS) from None
