"""What the commands that call a running service share: its address and key, and how its refusals are shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from gathernd import Client

DEFAULT_URL: Final = "http://127.0.0.1:8080"

Url = Annotated[str, typer.Option(envvar="GATHERND_URL", help="Where the service listens.")]
Key = Annotated[str | None, typer.Option(envvar="GATHERND_API_KEY", help="API key, where the service asks for one.")]


@contextmanager
def connect_or_exit(url: str, key: str | None) -> Iterator[Client]:
    """A client of the service at `url`.

    An error of the service, of the connection or of a file ends the command with exit code 1 and a message on stderr.
    """
    from gathernd import Client, GatherNDError, ServiceError  # noqa: PLC0415

    try:
        with Client(url, key=key) as client:
            yield client
    except ServiceError as error:
        typer.echo(f"gathernd: {error}", err=True)
        for place in error.errors:
            typer.echo(f"  at {place.pointer}{f' {list(place.position)}' if place.position else ''}", err=True)
        if error.total > len(error.errors):
            typer.echo(f"  and {error.total - len(error.errors)} more", err=True)
        for note in getattr(error, "__notes__", ()):  # the service's hint, and what the client adds to it
            typer.echo(f"  {note}", err=True)
        raise typer.Exit(1) from None
    except BrokenPipeError:
        raise  # who reads the output wants no more: typer ends the command without a word
    except (GatherNDError, OSError, TypeError, ValueError) as error:
        text = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            text = f"{error.filename}: {error.strerror}"
        typer.echo(f"gathernd: {text}", err=True)
        raise typer.Exit(1) from None
