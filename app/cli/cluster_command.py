"""`gathernd cluster …`: manage a cluster, which serves tables in row ranges from several machines."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from app.cli.failure import failure
from gathernd_cli.tables import Column, Field, human_bytes, print_fields, print_rows

if TYPE_CHECKING:
    from ssl import SSLContext
    from types import ModuleType

    from app.cluster.catalogue.client import CatalogueClient
    from app.cluster.shard_tls import ShardTls

Found = TypeVar("Found")
NODE_COLUMNS: Final = (
    Column("node"), Column("address"), Column("zone"), Column("state"), Column("ranges", right=True),
    Column("bytes", human_bytes, right=True), Column("capacity", human_bytes, right=True),
)  # fmt: skip
RANGE_COLUMNS: Final = (
    Column("version"), Column("rows"), Column("bytes", human_bytes, right=True), Column("replicas"),
)  # fmt: skip
_LOOK_S: Final = 0.5

app = typer.Typer(
    help="Manage a cluster, which serves tables in row ranges from several machines and keeps its catalogue in etcd.",
    no_args_is_help=True,
    add_completion=False,
)

Cluster = Annotated[
    str, typer.Option(envvar="GATHERND_CLUSTER", help="URL of the catalogue: etcd://HOST:PORT, or etcds:// over TLS.")
]
Authorities = Annotated[
    Path | None,
    typer.Option(
        envvar="GATHERND_CLUSTER_CA",
        help="File of CA certificates (PEM) to trust for etcds:// and for shards with TLS.",
    ),
]
Address = Annotated[
    str,
    typer.Option("--ray", envvar="RAY_ADDRESS", help="Ray cluster of this machine: auto, or HOST:PORT of its head."),
]


def _size(text: str) -> int:
    from app.settings import size_of  # noqa: PLC0415

    try:
        size: int = size_of(text)
    except ValueError:
        size = 0
    if size < 1:
        raise typer.BadParameter(f"{text!r} is not a number of bytes, such as 1GiB")
    return size


Node = Annotated[str, typer.Argument(help="Name of the shard, as shown by status.")]
Ranges = Annotated[int | None, typer.Option(min=1, help="Number of row ranges of a new version (initially 4).")]
Replicas = Annotated[int | None, typer.Option(min=1, help="Number of shards that hold each range (initially 2).")]
SegmentBytes = Annotated[
    int | None,
    typer.Option(
        parser=_size,
        metavar="SIZE",
        help="Split ranges larger than this in two; a size such as 1GiB (initially 16GiB).",
    ),
]


@contextmanager
def _catalogue(cluster: str, authorities: Path | None) -> Iterator[CatalogueClient]:
    """Yield a client of the catalogue. Errors of the client end the command with a message and exit code 1."""
    from app.cluster.catalogue.client import CatalogueClient  # noqa: PLC0415
    from app.cluster.catalogue.etcd import BadAddress, open_database  # noqa: PLC0415
    from app.errors import GatherError  # noqa: PLC0415

    try:
        database = open_database(cluster, authorities)
        try:
            yield CatalogueClient(database)
        finally:
            database.close()
    except (BadAddress, OSError) as error:
        raise failure(str(error)) from None
    except GatherError as problem:
        raise failure(problem.detail) from None


def _tls_files(certificate: Path | None, key: Path | None, authorities: Path | None) -> ShardTls | None:
    """Return the TLS files of shards, or None without TLS.

    Passing a certificate or key without the authorities is an error.
    """
    from app.cluster.shard_tls import ShardTls  # noqa: PLC0415

    if certificate is None and key is None:
        return None
    if certificate is None or authorities is None:
        raise failure("TLS requires both --tls-cert and --cluster-ca; the files must exist on every machine")
    paths = ("" if path is None else str(path.absolute()) for path in (certificate, key, authorities))
    return ShardTls(*paths)


def _run_on_ray(address: str, work: Callable[[ModuleType], Found]) -> Found:
    """Connect to Ray, call `work` with the `app.cluster.ray_launcher` module, and return its result.

    Errors end the command with exit code 1. The work runs in its own process, whose standard output is redirected to
    standard error: Ray prints on standard output and, if its node is lost, ends its process with an arbitrary exit
    code.
    """
    if find_spec("ray") is None:
        raise failure("this needs Ray: pip install ./clients/python '.[cluster]' in a checkout")
    with ProcessPoolExecutor(1, get_context("fork"), os.dup2, (2, 1)) as pool:
        try:
            return pool.submit(_run_connected, address, work).result()
        except BrokenProcessPool:
            raise failure("Ray ended unexpectedly: is the Ray cluster still running?") from None


def _run_connected(address: str, work: Callable[[ModuleType], Found]) -> Found:
    from app.cluster import ray_launcher  # noqa: PLC0415  (imports Ray)

    try:
        ray_launcher.connect(address)
        return work(ray_launcher)
    except OSError as error:
        raise failure(str(error)) from None


def _wait_until(look: Callable[[], bool], seconds: float, what: str, why: Callable[[], str] = str) -> None:
    """Wait until `look` returns True. After `seconds`, fail with the message `what` and the details from `why`."""
    end = time.monotonic() + seconds
    while not look():
        if time.monotonic() > end:
            raise failure(f"{what} after {seconds:.0f} s{why()}")
        time.sleep(_LOOK_S)


@app.command("init")
def cluster_init(
    cluster: Cluster,
    ranges: Ranges = None,
    replicas: Replicas = None,
    segment_bytes: SegmentBytes = None,
    cluster_ca: Authorities = None,
) -> None:
    """Create a cluster: write its options and a key for its shards. In an existing one, change the given options."""
    with _catalogue(cluster, cluster_ca) as client:
        typer.echo(_initialize_cluster(client, ranges=ranges, replicas=replicas, segment_bytes=segment_bytes))


def _initialize_cluster(client: CatalogueClient, **options: int | None) -> str:
    from app.cluster.catalogue.records import Options  # noqa: PLC0415
    from app.cluster.catalogue.transitions import set_options  # noqa: PLC0415

    given = {name: value for name, value in options.items() if value is not None}
    new = Options(key=f"gathernd_{secrets.token_urlsafe(32)}", cluster=secrets.token_hex(16))
    found = client.transact(partial(set_options, new=new, given=given)).options
    return f"new versions are cut into {found.ranges} ranges with {found.replicas} replicas each"


@app.command("start")
def cluster_start(
    cluster: Cluster,
    ray: Address = "auto",
    ranges: Ranges = None,
    replicas: Replicas = None,
    shards: Annotated[int | None, typer.Option(min=1, help="Number of shards (default: one for each machine).")] = None,
    data_dir: Annotated[
        Path, typer.Option(help="Folder on each machine; each shard makes its own folder in it.")
    ] = Path("/var/lib/gathernd-cluster"),
    shard_bytes: Annotated[
        int | None, typer.Option(min=1 << 17, help="Bytes that a shard may hold (default: the free disk space).")
    ] = None,
    flag: Annotated[
        list[str] | None,
        typer.Option(help="Another flag for the shards' gathernd serve, such as --flag=--threads=4. Repeatable."),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(help="Certificate file (PEM) on each machine, for its address: shards then serve over TLS."),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(help="Key file of the certificate on each machine. If omitted, the key is in the same file."),
    ] = None,
    cluster_ca: Authorities = None,
    metrics: Annotated[str, typer.Option(help="HOST:PORT on which the reconciler serves its metrics.")] = "",
    wait: Annotated[float, typer.Option(help="Seconds to wait until all shards are serving.")] = 300.0,
) -> None:
    """Start a reconciler and one shard on each machine of a Ray cluster, including machines that join later.

    In a running cluster, shards stay, and options that are not given keep their values.
    Start routers separately, with `gathernd serve --cluster etcd://…`.
    """
    tls = _tls_files(tls_cert, tls_key, cluster_ca)
    with _catalogue(cluster, cluster_ca) as client:
        typer.echo(_initialize_cluster(client, ranges=ranges, replicas=replicas))
    given: dict[str, Any] = {
        "cluster": cluster,
        "folder": str(data_dir.absolute()),
        "count": shards,
        "max_bytes": shard_bytes,
        "flags": tuple(flag or ()),
        "tls": tls,
        "metrics": metrics,
    }
    expected = _run_on_ray(ray, partial(_launch, given))
    with _catalogue(cluster, cluster_ca) as client:
        _wait_until(
            lambda: len(client.refresh().alive) >= expected,
            wait,
            f"not all {expected} shards are serving",
            lambda: _run_on_ray(ray, _problems),
        )
        typer.echo(f"{len(client.catalogue.alive)} shards are serving")


def _launch(given: Mapping[str, Any], launcher: Any) -> int:
    """Start the launcher. Returns the number of shards to wait for."""
    launcher.launch_all(launcher.Launch(**given))
    count: int = len(launcher.alive_machines()) if given["count"] is None else given["count"]
    return count


def _problems(launcher: Any) -> str:
    """Return one line for each shard with a known problem."""
    return "".join(f"\n  {name}: {problem}" for name, problem in sorted(launcher.shard_problems().items()))


@app.command("status")
def cluster_status(
    cluster: Cluster,
    *,
    cluster_ca: Authorities = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Print the options, the shards, and which shards hold which ranges."""
    found = _status(cluster, cluster_ca)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    options = found["options"]
    shown = {"segment_bytes": human_bytes}
    print_fields([Field(name, str(value), shown.get(name, str)) for name, value in options.items()])
    typer.echo()
    print_rows(NODE_COLUMNS, (_node_row(one) for one in found["nodes"]))
    if found["tables"]:
        typer.echo()
        print_rows(RANGE_COLUMNS, (row for table in found["tables"] for row in _range_rows(table)))


def _status(cluster: str, authorities: Path | None) -> Mapping[str, Any]:
    from app.cluster.reconciler.cluster_status import status_of  # noqa: PLC0415
    from app.cluster.reconciler.shard_calls import list_shards  # noqa: PLC0415

    with _catalogue(cluster, authorities) as client:
        catalogue = client.refresh()
        return status_of(catalogue, asyncio.run(list_shards(catalogue, _tls(authorities))))


def _node_row(node: Mapping[str, Any]) -> list[str]:
    return [str(node[name]) for name in ("node", "address", "zone", "state", "ranges", "bytes", "capacity")]


def _range_rows(table: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield a row for each range, in which the primary, incomplete replicas and out-of-sync replicas are marked."""
    version = f"{table['table']}@{table['version']}"
    for one in table["ranges"]:
        replicas = [f"{replica['node']}{_replica_state(one, replica)}" for replica in one["replicas"]]
        yield [version, f"{one['start']}-{one['stop'] - 1}", str(one["bytes"]), ", ".join(replicas)]


def _replica_state(one: Mapping[str, Any], replica: Mapping[str, Any]) -> str:
    if not replica["whole"]:
        return " (not whole)"
    if replica["node"] not in one.get("in_sync", (replica["node"],)):
        return " (out of sync)"
    return " (primary)" if replica["node"] == one.get("primary") else ""


@app.command("drain")
def cluster_drain(
    node: Node,
    cluster: Cluster,
    cluster_ca: Authorities = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait until other shards have its ranges.")] = 3600.0,
) -> None:
    """Move all ranges of a shard to other shards, and wait until it has none. Requests are served meanwhile."""
    from app.cluster.catalogue import transitions  # noqa: PLC0415

    with _catalogue(cluster, cluster_ca) as client:
        client.transact(partial(transitions.drain, node=node, by="gathernd cluster drain"))
        what = f"{node} still has ranges (do other shards have room, and is a reconciler running?)"
        _wait_until(lambda: transitions.used_bytes(client.refresh()).get(node, 0) == 0, wait, what)
    typer.echo(f"{node} has no ranges: it can be stopped")


@app.command("undrain")
def cluster_undrain(
    node: Node,
    cluster: Cluster,
    cluster_ca: Authorities = None,
) -> None:
    """Let a drained shard receive ranges again."""
    from app.cluster.catalogue import transitions  # noqa: PLC0415

    with _catalogue(cluster, cluster_ca) as client:
        client.transact(partial(transitions.undrain, node=node))


@app.command("forget")
def cluster_forget(
    node: Node,
    cluster: Cluster,
    cluster_ca: Authorities = None,
) -> None:
    """Remove a shard that will not come back from the catalogue. Running shards must hold all its ranges."""
    from app.cluster.catalogue import transitions  # noqa: PLC0415

    with _catalogue(cluster, cluster_ca) as client:
        known = client.refresh().nodes
        if node not in known:
            raise failure(f"no shard is named {node!r}; known shards: {', '.join(sorted(known)) or 'none'}")
        client.transact(partial(transitions.forget_node, node=node))


@app.command("reconcile")
def cluster_reconcile(
    cluster: Cluster,
    cluster_ca: Authorities = None,
    metrics: Annotated[str, typer.Option(help="HOST:PORT on which to serve metrics.")] = "",
) -> None:
    """Run a reconciler: it has shards copy ranges that lack replicas and drop superseded ones, until it is stopped.

    Several reconcilers may run: one is active, and another takes over when that one ends.
    """
    import logging.config  # noqa: PLC0415

    from app.cluster.catalogue.etcd import BadAddress, open_database  # noqa: PLC0415
    from app.cluster.reconciler.run_reconciler import reconcile  # noqa: PLC0415
    from app.telemetry import logs  # noqa: PLC0415

    logging.config.dictConfig(logs.configuration("text", "info"))
    host, _, port = metrics.rpartition(":")
    if metrics and not (host and port.isdecimal()):
        raise failure(f"--metrics {metrics!r} is not of the form HOST:PORT")
    at = (host.strip("[]"), int(port)) if metrics else None
    try:
        reconcile(open_database(cluster, cluster_ca), _tls(cluster_ca), at)
    except (BadAddress, OSError) as error:
        raise failure(str(error)) from None


def _tls(authorities: Path | None) -> SSLContext | None:
    """Return the TLS context for calls to shards, or None without TLS. Raises OSError."""
    from app.cluster.shard_tls import client_context  # noqa: PLC0415

    return None if authorities is None else client_context(authorities)


@app.command("stop")
def cluster_stop(ray: Address = "auto") -> None:
    """End all shards and the reconciler on Ray. Stored tables stay on disk, and the next start serves them again."""
    typer.echo(f"{_run_on_ray(ray, _stop)} shards have stopped")


def _stop(launcher: Any) -> int:
    launcher.stop_launcher()
    ended: int = launcher.stop_shards()
    return ended
