"""The commands that call a running service: `gathernd call` and `gathernd tensors`.

They can be broken off and given again without harm: an upload becomes visible whole or not at all, and a file that is
written appears under its name when it is complete.

The client and the progress bar are imported by the commands that use them: `gathernd serve` reads this module too, and
needs neither.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gathernd import GatherND, TensorInfo

DEFAULT_URL: Final = "http://127.0.0.1:8080"
RESIDENT: Final = "tensor:"
_PIECE: Final = 64 << 20
_ATTEMPTS: Final = 5

Url = Annotated[str, typer.Option(envvar="GATHERND_URL", help="Where the service listens.")]
Key = Annotated[str | None, typer.Option(envvar="GATHERND_API_KEY", help="API key, where the service asks for one.")]
Name = Annotated[str, typer.Argument(help="Name of a resident tensor.", show_default=False)]

tensors_app = typer.Typer(help="Resident tensors of a running service.", no_args_is_help=True)


class Operator(Enum):
    """Which operator `gathernd call` asks for."""

    GATHERND = "gathernd"
    GATHER = "gather"


@contextmanager
def _service(url: str, key: str | None) -> Iterator[GatherND]:
    """A client; what it or a file refuses ends the command with exit code 1 and a message on stderr."""
    from gathernd import GatherND, GatherNDError, ServiceError  # noqa: PLC0415

    try:
        with GatherND(url, key=key) as client:
            yield client
    except ServiceError as error:
        typer.echo(f"gathernd: {error}", err=True)
        for place in error.errors:
            typer.echo(f"  at {place.pointer}{f' {list(place.position)}' if place.position else ''}", err=True)
        if error.total > len(error.errors):
            typer.echo(f"  and {error.total - len(error.errors)} more", err=True)
        raise typer.Exit(1) from None
    except (GatherNDError, OSError, TypeError, ValueError) as error:
        typer.echo(f"gathernd: {error}", err=True)
        raise typer.Exit(1) from None


def _load(path: Path) -> NDArray[Any]:
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(found, np.ndarray):
        found.close()
        raise ValueError(f"{path} holds several arrays; an npy file holds one")
    return found


@contextmanager
def _complete(path: Path) -> Iterator[Path]:
    """A file to write that takes the name `path` at the end, and leaves nothing behind where there is no end."""
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".part", delete=False) as made:
        part = Path(made.name)
    try:
        yield part
        umask = os.umask(0)
        os.umask(umask)
        part.chmod(0o666 & ~umask)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _bar(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, which takes the bytes so far; nothing where that is no terminal."""
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(name, total=total)
        yield lambda done: progress.update(task, completed=done)


def call(
    data: Annotated[str, typer.Argument(help="npy file of the data, or tensor:NAME of a resident one.")],
    indices: Annotated[Path, typer.Argument(help="npy file of the indices.")],
    op: Annotated[Operator, typer.Option(help="Which operator.")] = Operator.GATHERND,
    batch_dims: Annotated[int, typer.Option(help="Leading dimensions that are batches (gathernd).")] = 0,
    axis: Annotated[int, typer.Option(help="Axis to gather on (gather).")] = 0,
    dialect: Annotated[str, typer.Option(help="Whose rules hold.")] = "onnx-13",
    device: Annotated[str, typer.Option(help="auto, cpu or gpu.")] = "auto",
    output: Annotated[Path | None, typer.Option(help="npy file to write; without it the output is printed.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Gather by a running service: npy files in, an npy file out."""
    if (axis if op is Operator.GATHERND else batch_dims) != 0:
        typer.echo("gathernd: --batch-dims belongs to --op gathernd, --axis to --op gather", err=True)
        raise typer.Exit(2)
    with _service(url, key) as service:
        source: Any = data.removeprefix(RESIDENT) if data.startswith(RESIDENT) else _load(Path(data))
        if op is Operator.GATHERND:
            found = service.gathernd(source, _load(indices), batch_dims, dialect=dialect, device=device)
        else:
            found = service.gather(source, _load(indices), axis, dialect=dialect, device=device)
        if output is None:
            typer.echo(np.array2string(found, threshold=1000))
            return
        with _complete(output) as part, part.open("wb") as file:
            np.save(file, _storable(found), allow_pickle=False)


def _storable(array: NDArray[Any]) -> NDArray[Any]:
    """`array` as npy can hold it: strings of a fixed width. Raises TypeError for bfloat16."""
    if array.dtype == object:
        return array.astype(str) if array.size else np.empty(array.shape, "<U1")
    if array.dtype.kind == "V":
        raise TypeError(f"an npy file cannot hold {array.dtype.name}")
    return array


@tensors_app.command("put")
def put(
    name: Name,
    file: Annotated[Path, typer.Argument(help="npy file.")],
    if_match: Annotated[str | None, typer.Option(help="ETag that the tensor must have now.")] = None,
    new: Annotated[bool, typer.Option("--new", help="Only if there is no tensor of this name yet.")] = False,
    prefault: Annotated[bool, typer.Option("--prefault", help="Read it into memory ahead of requests.")] = False,
    lock: Annotated[bool, typer.Option("--lock", help="Keep it in memory where the system allows that.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Upload an npy file as a resident tensor. Prints its ETag."""
    with _service(url, key) as service:
        array = _load(file)
        with _bar(name, array.nbytes) as progress:
            info = service.put(
                name,
                array,
                if_match=if_match,
                if_none_match="*" if new else None,
                prefault=prefault,
                lock=lock,
                progress=progress,
            )
        typer.echo(info.etag)


@tensors_app.command("ls")
def ls(url: Url = DEFAULT_URL, key: Key = None) -> None:
    """List the resident tensors: name, type, shape, bytes, time of the last change, ETag."""
    with _service(url, key) as service:
        for info in service.tensors():
            shape = ",".join(map(str, info.shape))
            typer.echo("\t".join((info.name, info.dtype, f"[{shape}]", str(info.bytes), info.modified, info.etag)))


@tensors_app.command("get")
def get(
    name: Name,
    file: Annotated[Path, typer.Argument(help="npy file to write.")],
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Download a resident tensor into an npy file. A large one comes in pieces, all of the same content."""
    from gathernd.errors import PreconditionFailed  # noqa: PLC0415

    with _service(url, key) as service:
        for attempt in range(_ATTEMPTS):
            info = service.metadata(name)
            try:
                with _complete(file) as part, _bar(name, info.bytes) as progress:
                    _download(service, info, part, progress)
            except PreconditionFailed:
                # The tensor was replaced meanwhile: its pieces would not belong together.
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return


def _download(service: GatherND, info: TensorInfo, part: Path, progress: Callable[[int], None]) -> None:
    rows = info.shape[0] if info.shape else 0
    if info.bytes <= _PIECE or rows < 2 or info.dtype == "string":
        array = service.get(info.name, if_match=info.etag, progress=progress)
        with part.open("wb") as file:
            np.save(file, _storable(array), allow_pickle=False)
        return
    step = max(1, _PIECE * rows // info.bytes)
    mapped = None
    for first in range(0, rows, step):
        piece = _storable(service.get(info.name, rows=(first, min(first + step, rows)), if_match=info.etag))
        if mapped is None:
            mapped = np.lib.format.open_memmap(part, mode="w+", dtype=piece.dtype, shape=info.shape)
        mapped[first : first + len(piece)] = piece
        progress((first + len(piece)) * info.bytes // rows)
    assert mapped is not None
    mapped.flush()


@tensors_app.command("rm")
def rm(
    name: Name,
    if_match: Annotated[str | None, typer.Option(help="ETag that the tensor must have now.")] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Remove a resident tensor."""
    with _service(url, key) as service:
        service.delete(name, if_match=if_match)
