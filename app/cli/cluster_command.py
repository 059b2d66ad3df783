"""`gathernd cluster start|status|drain|stop`: tables in row ranges on the machines of a Ray cluster."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer

from gathernd_cli.tables import Column, human_bytes, print_rows

if TYPE_CHECKING:
    from types import ModuleType

    from app.cluster.shard_tls import ShardTls

Found = TypeVar("Found")
NODE_COLUMNS: Final = (
    Column("node"), Column("address"), Column("state"), Column("ranges", right=True),
    Column("bytes", human_bytes, right=True), Column("capacity", human_bytes, right=True),
)  # fmt: skip
RANGE_COLUMNS: Final = (
    Column("version"), Column("rows"), Column("bytes", human_bytes, right=True), Column("replicas"),
)  # fmt: skip
_LOOK_S: Final = 0.5

app = typer.Typer(
    help="Serve tables in row ranges from the machines of a Ray cluster (extra `cluster`).",
    no_args_is_help=True,
    add_completion=False,
)

Address = Annotated[
    str, typer.Option("--ray", envvar="RAY_ADDRESS", help="The Ray cluster: auto, HOST:PORT of its head, or ray://…")
]


def _fail(reason: str) -> typer.Exit:
    typer.echo(f"gathernd: {reason}", err=True)
    return typer.Exit(1)


def _tls_files(certificate: Path | None, key: Path | None, authorities: Path | None) -> ShardTls | None:
    """The files that shards serve TLS with, None without. A certificate goes with authorities, and a key with both."""
    from app.cluster.shard_tls import ShardTls  # noqa: PLC0415

    if certificate is None and key is None and authorities is None:
        return None
    if certificate is None or authorities is None:
        raise _fail("TLS needs --tls-cert and --tls-ca, files that are on each machine")
    paths = ("" if path is None else str(path.absolute()) for path in (certificate, key, authorities))
    return ShardTls(*paths)


def _check_prefixes(prefixes: Sequence[str]) -> None:
    from app.imports.source_urls import BadUrl, parse_prefix  # noqa: PLC0415

    for text in prefixes:
        try:
            parse_prefix(text)
        except BadUrl as problem:
            raise _fail(f"{text!r} is no prefix of URLs: {problem}") from None


def _on_ray(address: str, work: Callable[[ModuleType], Found]) -> Found:
    """What `work` returns with the module `app.cluster.placement`, connected. Errors end the command with exit code 1.

    It runs in a process of its own, whose standard output is standard error: Ray prints there, and ends the process
    that it runs in where its node of the Ray cluster is gone, with any exit code.
    """
    if find_spec("ray") is None:
        raise _fail("this needs Ray: pip install ./clients/python '.[cluster]' in a checkout")
    with ProcessPoolExecutor(1, get_context("fork"), os.dup2, (2, 1)) as pool:
        try:
            return pool.submit(_connected, address, work).result()
        except BrokenProcessPool:
            raise _fail("Ray has ended the process that asked it: is the Ray cluster gone?") from None


def _connected(address: str, work: Callable[[ModuleType], Found]) -> Found:
    from app.cluster import placement  # noqa: PLC0415  (imports Ray)

    try:
        placement.connect(address)
        return work(placement)
    except OSError as error:
        raise _fail(str(error)) from None


def _until(look: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not look():
        if time.monotonic() > end:
            raise _fail(f"{what} after {seconds:.0f} s")
        time.sleep(_LOOK_S)


def _change(link: Any, what: Literal["drain", "undrain"], node: str) -> None:
    from app.cluster.coordinator.coordinator_client import CoordinatorClient, StaleMap  # noqa: PLC0415
    from app.errors import GatherError  # noqa: PLC0415

    try:
        CoordinatorClient(link, lambda _: None).change(what, node, "", link.status()["generation"])
    except (GatherError, StaleMap) as error:
        raise _fail(str(error)) from None


@app.command("start")
def cluster_start(
    ray: Address = "auto",
    ranges: Annotated[int, typer.Option(min=1, help="Into how many row ranges a new version is cut.")] = 4,
    replicas: Annotated[int, typer.Option(min=1, help="On how many machines each range is.")] = 2,
    shards: Annotated[
        int | None, typer.Option(min=1, help="How many shards there are to be; one for each machine by default.")
    ] = None,
    data_dir: Annotated[Path, typer.Option(help="Folder on each machine: a shard has its own folder in it.")] = Path(
        "/var/lib/gathernd-cluster"
    ),
    shard_bytes: Annotated[
        int | None, typer.Option(min=1 << 17, help="Bytes that a shard may hold; what the disk has free by default.")
    ] = None,
    flag: Annotated[
        list[str] | None, typer.Option(help="A further flag of the shards' gathernd serve, as --flag=--threads=4.")
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="Certificate (PEM) on each machine, for its address: shards serve over TLS.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The certificate's key on each machine; it may stand in the same file.")
    ] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="Authorities (PEM) on each machine, by which shards verify one another.")
    ] = None,
    import_from: Annotated[
        list[str] | None,
        typer.Option(help="Prefix of URLs, as in GATHERND_IMPORT_FROM, from which shards read again what they lost."),
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait until all shards serve.")] = 300.0,
) -> None:
    """Start a coordinator, and shards on all machines that have none.

    The coordinator starts shards on machines that come later; one that was drained is taken back by another start.
    `gathernd serve --cluster auto` on any machine of the Ray cluster is a router. A coordinator that runs keeps its
    ranges and replicas.
    """
    tls = _tls_files(tls_cert, tls_key, tls_ca)
    _check_prefixes(import_from or ())
    flags = tuple(part for one in flag or () for part in one.split("=", 1))
    given = (shards, str(data_dir.absolute()), shard_bytes, flags, tls, tuple(import_from or ()))
    typer.echo(_on_ray(ray, partial(_start, ranges, replicas, given, wait)))


def _start(ranges: int, replicas: int, given: tuple[Any, ...], wait: float, placement: Any) -> str:
    from app.cluster.coordinator.cluster_options import ClusterOptions  # noqa: PLC0415

    link = placement.ActorLink()
    wanted = ClusterOptions(ranges=ranges, replicas=replicas)
    placement.start_coordinator(wanted, f"gathernd_{secrets.token_urlsafe(32)}")
    running = link.options()
    if (running.ranges, running.replicas) != (ranges, replicas):
        typer.echo(
            f"gathernd: the coordinator that runs cuts into {running.ranges} ranges with {running.replicas} "
            "replicas, and goes on so",
            err=True,
        )
    spec = placement.ShardsWanted(*given)
    placement.want_shards(spec)
    made = placement.start_shards(spec, link.key())
    for name in {*made} & {*link.status()["draining"]}:  # of a machine that comes back
        _change(link, "undrain", name)

    def all_serve() -> bool:
        heard = {node["node"] for node in link.status()["nodes"] if node["state"] != "lost"}
        return heard.issuperset(placement.shard_actors())

    _until(all_serve, wait, "not all shards serve")
    return f"{len(made)} shards started, {len(placement.shard_actors())} serve"


@app.command("status")
def cluster_status(
    ray: Address = "auto",
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print all that is known, as JSON.")] = False,
) -> None:
    """The machines, and which of them have which ranges."""
    found = _on_ray(ray, _status)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    print_rows(NODE_COLUMNS, (_node_row(one) for one in found["nodes"]))
    if found["tables"]:
        typer.echo()
        print_rows(RANGE_COLUMNS, (row for table in found["tables"] for row in _range_rows(table)))


def _status(placement: Any) -> Any:
    return placement.ActorLink().status()


def _node_row(node: Mapping[str, Any]) -> list[str]:
    return [str(node[name]) for name in ("node", "address", "state", "ranges", "bytes", "capacity")]


def _range_rows(table: Mapping[str, Any]) -> Iterator[list[str]]:
    """One row for each range: replicas that are not whole now are marked."""
    version = f"{table['table']}@{table['version']}"
    for one in table["ranges"]:
        replicas = [f"{replica['node']}{'' if replica['whole'] else ' (not whole)'}" for replica in one["replicas"]]
        yield [version, f"{one['start']}-{one['stop'] - 1}", str(one["bytes"]), ", ".join(replicas)]


@app.command("drain")
def cluster_drain(
    node: Annotated[str, typer.Argument(help="The shard, as status names it.")],
    ray: Address = "auto",
    wait: Annotated[float, typer.Option(help="Seconds to wait until others have its ranges.")] = 3600.0,
) -> None:
    """Have others copy a shard's ranges, and end the shard once they have. Requests go on meanwhile."""
    typer.echo(_on_ray(ray, partial(_drain, node, wait)))


def _drain(node: str, wait: float, placement: Any) -> str:
    link = placement.ActorLink()
    known = {one["node"]: one for one in link.status()["nodes"]}
    if node not in known:
        raise _fail(f"there is no shard {node!r}; there are {', '.join(known)}")
    _change(link, "drain", node)

    def is_empty() -> bool:
        return all(one["node"] != node or not one["ranges"] for one in link.status()["nodes"])

    _until(is_empty, wait, f"{node} still has ranges: is there room on others?")
    placement.stop_shard(node)
    return f"{node} has no ranges and has ended"


@app.command("stop")
def cluster_stop(ray: Address = "auto") -> None:
    """End all shards and the coordinator. What they have stored stays, and the next start serves it again."""
    typer.echo(_on_ray(ray, _stop))


def _stop(placement: Any) -> str:
    placement.want_shards(None)
    actors = placement.shard_actors()
    for name in actors:
        placement.stop_shard(name)
    placement.stop_coordinator()
    return f"{len(actors)} shards have ended"
