"""Shards for the tests: services with `--shard`, whose catalogue need not be there, since they know its key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from app.cluster.catalogue.records import Options
from app.cluster.shard.pull_order import PullOrder, PullSource
from app.cluster.shard.shard_folder import ShardFolder
from app.cluster.shard_map import shard_tensor
from app.store.files.tensor_file import new_hash
from app.tensors.dtypes import DTYPES
from tests.cluster.running import put
from tests.http.server import Server, serving
from tests.parity.items import Array, name_of

KEY = "gathernd_key_of_the_cluster"
NOWHERE = "etcd://127.0.0.1:9"
"""A catalogue that nobody reaches."""


@contextmanager
def shard(
    warmed: Path, folder: Path, *flags: str, cluster: str = NOWHERE, key: str | None = KEY, **options: Any
) -> Iterator[Server]:
    """A shard named after its folder; its clients send the key."""
    ShardFolder(folder / "store").store_options(Options(key=key))
    own = "--kernel", "numpy", "--cluster", cluster, "--shard", "--node", folder.name
    with serving(warmed, folder, *own, *flags, **options) as running:
        yield running


def client_of(running: Server) -> httpx.Client:
    """A client that sends the cluster's key."""
    return running.client(headers={"authorization": f"Bearer {KEY}"})


def address_of(running: Server) -> str:
    return f"127.0.0.1:{running.port}"


def digest_of(rows: Array) -> str:
    """The digest that a shard says of rows."""
    found = new_hash(DTYPES[name_of(rows)], rows.shape)
    found.update(rows.tobytes())
    return str(found.hexdigest())


def give(client: httpx.Client, rows: Array, content: str = "c1", start: int = 0) -> str:
    """Put a segment as a router does: the name under which the shard has it."""
    tensor = shard_tensor(content, start, start + len(rows))
    put(client, tensor, rows)
    return tensor


def order_of(rows: Array, *sources: PullSource, fence: int | None = 1, **members: Any) -> PullOrder:
    """The order to pull these rows."""
    made = PullOrder(fence, DTYPES[name_of(rows)], rows.shape, rows.nbytes, digest_of(rows), sources)
    return replace(made, **members)


def pull(client: httpx.Client, tensor: str, order: PullOrder, **options: Any) -> httpx.Response:
    return client.post(f"/shard/segments/{tensor}", content=order.to_json(), **options)


def segments(client: httpx.Client) -> list[str]:
    """The names of the segments that a shard has whole."""
    return [one["tensor"] for one in client.get("/shard/segments").json()["segments"]]
