"""`gathernd tensors put|ls|versions|show|replicas|get|keys|rows|upsert|remove|scatter|rm`: resident tensors.

Every command can be interrupted and repeated safely: an upload becomes visible whole or not at all, and a downloaded
file gets its name when it is complete.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypedDict

import typer

from .call_options import IdempotencyKey, IfMatch, Reduction
from .connect_or_exit import DEFAULT_URL, Ca, Key, Url, connect_or_exit
from .tables import Column, Field, human_bytes, print_fields, print_rows, short_etag
from .tensor_keys import keys as print_keys
from .tensor_keys import remove as remove_rows
from .tensor_keys import rows as print_rows_by_key
from .tensor_keys import upsert as upsert_rows
from .url_file import download_temporarily, is_url, shown_url, split_fragment

if TYPE_CHECKING:
    from gathernd import Client, TableRange, TensorInfo

CHUNK_BYTES: Final = 64 << 20
"""A tensor larger than this (in bytes) is downloaded in row ranges of about this size."""
DOWNLOAD_ATTEMPTS: Final = 5
"""Maximum number of attempts for a download if the tensor is replaced during it."""

Name = Annotated[str, typer.Argument(help="Resident tensor: NAME, NAME@7, or an alias.", show_default=False)]
Removed = Annotated[str, typer.Argument(help="Resident tensor: NAME for all versions, or NAME@7.", show_default=False)]
NewName = Annotated[str, typer.Argument(help="Name of a resident tensor.", show_default=False)]

COLUMNS: Final = (
    Column("name"),
    Column("type"),
    Column("shape"),
    Column("size", human_bytes, right=True),
    Column("changed"),
    Column("etag", short_etag),
    Column("version", right=True),
)
"""The columns of `ls`."""

app = typer.Typer(help="Resident tensors of a running service.", no_args_is_help=True, add_completion=False)


class PutOptions(TypedDict):
    """Options that uploads and imports share."""

    if_match: str | None
    if_none_match: str | None
    prefault: bool
    lock: bool
    keep: int | None
    note: str | None
    replicas: int | None


class UploadOptions(PutOptions):
    """Options of uploads, including those that imports do not have."""

    columns: list[str] | None
    capacity: int | None


@contextmanager
def _progress_bar(name: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr if that is a terminal.

    Yields a function to call with the number of bytes so far.
    """
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


@app.command("put")
def put(
    name: NewName,
    file: Annotated[
        str,
        typer.Argument(help="npy, safetensors, Parquet or Arrow file, or its URL; URL#TENSOR selects a tensor in it."),
    ],
    keys: Annotated[
        str | None,
        typer.Option(
            help="Keys of the rows: the name of a column of a Parquet or Arrow file, or an npy file with the keys; "
            "with --server, the name of a tensor in the safetensors file. Not needed for a safetensors file with keys."
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Columns of a Parquet or Arrow file that make up the rows, separated by commas. If omitted: all "
            "except the keys."
        ),
    ] = None,
    if_match: IfMatch = None,
    tensor: Annotated[
        str | None, typer.Option(help="Name of the tensor to upload, if a safetensors file has several.")
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Fail if the tensor exists already.")] = False,
    prefault: Annotated[bool, typer.Option("--prefault", help="Read the data into memory ahead of requests.")] = False,
    lock: Annotated[bool, typer.Option("--lock", help="Keep the data in memory, if the system allows it.")] = False,
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many of the newest versions to keep, including this one; versions with aliases are kept as well. "
            "If omitted: the service's setting.",
        ),
    ] = None,
    note: Annotated[
        str | None, typer.Option(help="A note about this version, such as its run, commit and author.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="In a cluster only: number of shards that hold a copy of each row range, for all versions from now "
            "on. If omitted: unchanged.",
        ),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Tables with keys only: number of rows to reserve space for. The table grows when necessary. If "
            "omitted: the number uploaded.",
        ),
    ] = None,
    server: Annotated[
        bool, typer.Option("--server", help="The service, instead of this machine, reads the URL.")
    ] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Upload a file as the next version of a resident tensor. Prints its ETag.

    A URL (http or https) is downloaded to this machine and then uploaded.
    With --server the service reads the URL itself, if its settings allow it.
    """
    options: PutOptions = {
        "if_match": if_match, "if_none_match": "*" if new else None, "prefault": prefault, "lock": lock, "keep": keep,
        "note": note, "replicas": replicas,
    }  # fmt: skip
    from_here: UploadOptions = {
        **options, "columns": None if columns is None else columns.split(","), "capacity": capacity,
    }  # fmt: skip
    with connect_or_exit(url, key, ca) as service:
        if not is_url(file):
            if server:
                raise ValueError(f"--server needs a URL; {file} is a file")
            info = _upload(service, name, Path(file), keys, tensor, from_here)
        else:
            address, fragment = split_fragment(file)
            tensor = tensor or fragment
            if not server:
                info = _download_and_upload(service, name, address, keys, tensor, from_here)
            elif columns is not None:
                raise ValueError("--columns cannot be used with --server: the service cannot read Parquet or Arrow")
            elif capacity is not None:
                raise ValueError("--capacity cannot be used with --server")
            else:
                info = _import(service, name, address, keys, tensor, options)
        typer.echo(info.etag)


def _upload(
    service: Client,
    name: str,
    file: Path,
    keys: str | None,
    tensor: str | None,
    options: UploadOptions,
) -> TensorInfo:
    from gathernd._upload_sources import is_table_file  # noqa: PLC0415  (imports NumPy, not needed for the help)

    from .npy_files import is_safetensors, load  # noqa: PLC0415

    # The client accepts all these paths, but `load` reports malformed npy files in more detail.
    is_table = is_table_file(file)
    content = file if tensor is not None or is_table or is_safetensors(file) else load(file)
    with _progress_bar(name, getattr(content, "nbytes", None)) as progress:
        own = keys if keys is None or is_table else load(Path(keys))
        return service.put(name, content, keys=own, tensor=tensor, progress=progress, **options)


def _download_and_upload(
    service: Client,
    name: str,
    url: str,
    keys: str | None,
    tensor: str | None,
    options: UploadOptions,
) -> TensorInfo:
    with ExitStack() as stack:
        bars: list[Callable[[int], None]] = []

        def show(done: int, total: int | None) -> None:
            if not bars:
                bars.append(stack.enter_context(_progress_bar(shown_url(url), total)))
            bars[0](done)

        path = stack.enter_context(download_temporarily(url, show))
        try:
            return _upload(service, name, path, keys, tensor, options)
        except ValueError as error:  # report the URL: the caller does not know the temporary file
            raise ValueError(str(error).replace(str(path), shown_url(url))) from None


def _import(
    service: Client, name: str, url: str, keys: str | None, tensor: str | None, options: PutOptions
) -> TensorInfo:
    found = service.begin_import(name, url, tensor=tensor, keys=keys, **options)
    with _progress_bar(name, found.bytes_total) as progress:
        return service.wait_for_import(found, progress=progress)


@app.command("ls")
def ls(url: Url = DEFAULT_URL, key: Key = None, ca: Ca = None) -> None:
    """List the resident tensors: name, type, shape, bytes, time of the last change, ETag, current version.

    In a cluster, another column gives the number of replicas.
    """
    with connect_or_exit(url, key, ca) as service:
        tensors = service.tensors()
        first = next(tensors, None)
        if first is None or first.replicas is None:
            print_rows(COLUMNS, (_row(info) for info in _prepend(first, tensors)))
        else:
            rows = ((*_row(info), str(info.replicas)) for info in _prepend(first, tensors))
            print_rows((*COLUMNS, Column("replicas", right=True)), rows)


def _prepend(first: TensorInfo | None, others: Iterator[TensorInfo]) -> Iterator[TensorInfo]:
    return others if first is None else chain((first,), others)


@app.command("versions")
def versions(name: NewName, url: Url = DEFAULT_URL, key: Key = None, ca: Ca = None) -> None:
    """List the versions of a resident tensor, newest first: the columns of `ls`, then the aliases and the note."""
    with connect_or_exit(url, key, ca) as service:
        numbers = reversed(service.metadata(name).versions)
        named: dict[int, list[str]] = {}
        for alias in service.aliases():
            if alias.name == name:
                named.setdefault(alias.version, []).append(alias.alias)
        print_rows(
            (*COLUMNS, Column("aliases"), Column("note")),
            (
                (*_row(info), ",".join(named.get(info.version, [])), info.note or "")
                for info in (service.metadata(f"{name}@{number}") for number in numbers)
            ),
        )


def _row(info: TensorInfo) -> tuple[str, ...]:
    """Return the values of a tensor for `COLUMNS`."""
    return info.name, info.dtype, _shape(info), str(info.bytes), info.modified, info.etag, str(info.version)


@app.command("show")
def show(name: Name, url: Url = DEFAULT_URL, key: Key = None, ca: Ca = None) -> None:
    """Print the details of a resident tensor: one name and value on each line."""
    with connect_or_exit(url, key, ca) as service:
        info = service.metadata(name)
    print_fields(
        (
            Field("name", info.name),
            Field("dtype", info.dtype),
            Field("shape", _shape(info)),
            Field("bytes", str(info.bytes), human_bytes),
            Field("etag", info.etag),
            Field("sha256", info.sha256),
            Field("created", info.created),
            Field("modified", info.modified),
            Field("prefault", str(info.prefault).lower()),
            Field("lock", str(info.lock).lower()),
            Field("version", str(info.version)),
            Field("versions", ",".join(map(str, info.versions))),
            *([] if info.keys is None else [Field("keys", info.keys.dtype)]),
            *([] if info.capacity is None else [Field("capacity", f"{info.capacity} rows")]),
            *([] if info.replicas is None else [Field("replicas", str(info.replicas))]),
            *(Field("range", range_text(one)) for one in info.ranges),
            *([] if info.note is None else [Field("note", info.note)]),
        )
    )


def range_text(one: TableRange) -> str:
    """Describe a row range: its rows and the shards that hold it, with their roles if the table accepts scatters."""
    roles = {shard: "in sync" if shard in one.in_sync else "out of sync" for shard in one.shards if one.in_sync}
    if one.primary is not None:
        roles[one.primary] = "primary"
    shards = ", ".join(f"{shard} ({roles[shard]})" if shard in roles else shard for shard in one.shards)
    return f"{one.start}-{one.stop - 1}: {shards}"


def _shape(info: TensorInfo) -> str:
    return f"[{','.join(map(str, info.shape))}]"


@app.command("replicas")
def replicas(
    name: NewName,
    number: Annotated[
        int,
        typer.Argument(min=1, help="Number of shards that hold a copy of each row range.", show_default=False),
    ],
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Set on how many shards of a cluster each row range of a table is kept, for all its versions.

    The command does not wait until copies are made or dropped.
    """
    with connect_or_exit(url, key, ca) as service:
        service.set_replicas(name, number)


@app.command("get")
def get(
    name: Name,
    file: Annotated[Path, typer.Argument(help="npy file to write.")],
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Download a resident tensor into an npy file.

    A large tensor is downloaded in several requests. If it is replaced meanwhile, the download starts over.
    """
    from gathernd.errors import PreconditionFailed  # noqa: PLC0415

    from .npy_files import replace_atomically  # noqa: PLC0415

    with connect_or_exit(url, key, ca) as service:
        for attempt in range(DOWNLOAD_ATTEMPTS):
            info = service.metadata(name)
            try:
                with replace_atomically(file) as temporary, _progress_bar(name, info.bytes) as progress:
                    _download(service, name, info, temporary, progress)
            except PreconditionFailed:
                # The tensor was replaced during the download: the rows read so far are from its old version.
                if attempt == DOWNLOAD_ATTEMPTS - 1:
                    raise
            else:
                return


def _download(service: Client, name: str, info: TensorInfo, target: Path, progress: Callable[[int], None]) -> None:
    import numpy as np  # noqa: PLC0415

    from .npy_files import storable  # noqa: PLC0415

    rows = info.shape[0] if info.shape else 0
    if info.bytes <= CHUNK_BYTES or rows < 2 or info.dtype == "string":
        array = service.get(name, if_match=info.etag, progress=progress)
        with target.open("wb") as file:
            np.save(file, storable(array), allow_pickle=False)
        return
    step = max(1, CHUNK_BYTES * rows // info.bytes)
    # Write the file instead of mapping it: on a full disk, write() raises an error, but a mapped page ends the process.
    with target.open("wb") as file:
        for first in range(0, rows, step):
            rows_read = storable(service.get(name, rows=(first, min(first + step, rows)), if_match=info.etag))
            if not first:
                descr = np.lib.format.dtype_to_descr(rows_read.dtype)
                header = {"descr": descr, "fortran_order": False, "shape": info.shape}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(rows_read.data)
            progress((first + len(rows_read)) * info.bytes // rows)


app.command("keys")(print_keys)
app.command("rows")(print_rows_by_key)
app.command("upsert")(upsert_rows)
app.command("remove")(remove_rows)


@app.command("scatter")
def scatter(
    name: Name,
    indices: Annotated[Path, typer.Argument(help="npy file with the indices, shape [..., k].")],
    updates: Annotated[
        Path,
        typer.Argument(help="npy file with the updates: one slice per index tuple, in the tensor's type."),
    ],
    reduction: Annotated[
        Reduction, typer.Option(help="How to combine an update with the current value.")
    ] = Reduction.NONE,
    if_match: IfMatch = None,
    idempotency_key: IdempotencyKey = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Change slices of a resident tensor with ScatterND. Prints its new ETag."""
    from .npy_files import load  # noqa: PLC0415

    with connect_or_exit(url, key, ca) as service:
        info = service.scatter(
            name,
            load(indices),
            load(updates),
            reduction.value,
            with_info=True,
            if_match=if_match,
            idempotency_key=idempotency_key,
        )
        typer.echo(info.etag)
        if info.ranges is not None:
            typer.echo(f"ranges changed: {info.ranges}", err=True)


@app.command("rm")
def rm(
    name: Removed,
    if_match: IfMatch = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    ca: Ca = None,
) -> None:
    """Remove a resident tensor with all its versions, or only the version NAME@7."""
    with connect_or_exit(url, key, ca) as service:
        service.delete(name, if_match=if_match)
