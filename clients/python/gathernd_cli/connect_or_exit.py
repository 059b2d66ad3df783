"""Connect a command to a running service: its address and API key, and how errors are shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from gathernd import Client

DEFAULT_URL: Final = "http://127.0.0.1:8080"

Url = Annotated[str, typer.Option(envvar="GATHERND_URL", help="URL of the service, or unix:/PATH of its socket.")]
Key = Annotated[str | None, typer.Option(envvar="GATHERND_API_KEY", help="API key, if the service requires one.")]

Ca = Annotated[
    Path | None,
    typer.Option(
        envvar="GATHERND_CA",
        exists=True,
        help="File or folder of certificate authorities (PEM) to trust for HTTPS, in place of the public ones.",
        show_default=False,
    ),
]


_FEATURE: Final = re.compile(
    r"/(?:__metadata__/lookup/features/)?(?P<number>[0-9]+)(?:[./](?P<member>[a-z_]+))?(?:/.*)?"
)
_OPTION: Final = re.compile(r"/(?:query|__metadata__/lookup)/(?P<name>[a-z_]+)")


def option_of_pointer(pointer: str) -> str:
    """Return what was typed for a JSON Pointer into a request: an option or a feature. Features are counted from 1.

    Other pointers are returned unchanged: `/indices`, for example, is also the name of the command's argument.
    """
    feature = _FEATURE.fullmatch(pointer)
    if feature is not None:
        member = f", {feature['member']}" if feature["member"] else ""
        return f"feature {int(feature['number']) + 1}{member}"
    option = _OPTION.fullmatch(pointer)
    return f"--{option['name'].replace('_', '-')}" if option is not None else pointer


@contextmanager
def connect_or_exit(url: str, key: str | None, ca: Path | None) -> Iterator[Client]:
    """Yield a client of the service at `url`. Over HTTPS, it trusts the authorities in `ca`.

    If the service, the connection or a file fails, exit with code 1 and a message on stderr.
    """
    from gathernd import Client, GatherNDError, ServiceError  # noqa: PLC0415

    try:
        with Client(url, key=key, verify=ca) as client:
            yield client
    except ServiceError as error:
        typer.echo(f"gathernd: {error}", err=True)
        for place in error.errors:
            at = f" {list(place.position)}" if place.position else ""
            typer.echo(f"  at {option_of_pointer(place.pointer)}{at}", err=True)
        if error.total > len(error.errors):
            typer.echo(f"  and {error.total - len(error.errors)} more", err=True)
        for note in getattr(error, "__notes__", ()):  # the service's hint, and any additions from the client
            typer.echo(f"  {note}", err=True)
        raise typer.Exit(1) from None
    except BrokenPipeError:
        raise  # the reader closed the pipe, so typer ends the command silently
    except (GatherNDError, OSError, TypeError, ValueError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            text = f"{error.filename}: {error.strerror}"
        typer.echo(f"gathernd: {text}", err=True)
        for note in getattr(error, "__notes__", ()):
            typer.echo(f"  {note}", err=True)
        raise typer.Exit(1) from None
