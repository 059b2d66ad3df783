"""Segments that shards pull from where they are imported, and rows that are read from them: shards that fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from app.cluster.catalogue import transitions
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.records import Change, Mark, Node, Options
from app.cluster.router.running_uploads import RunningUploads
from app.cluster.router.segment_writer import ShardAccess
from app.cluster.router.version_writer import VersionWriter
from app.errors import GatherError
from app.tensors.dtypes import DTYPES
from tests.cluster.clustered import catalogue_client
from tests.cluster.databases import running_database

TABLE = np.arange(3 << 20, dtype=np.int32).reshape(-1, 2)
"""12 MiB, of which 4 MiB are read at a time."""
PATH = re.compile(r"/tensors/[^.]+\.([0-9]+)-[0-9]+/content\?rows=([0-9]+):([0-9]+)")


class Shard(ThreadingHTTPServer):
    """A shard that says of every pull that it is done, and has all rows. `pull` and `most` say otherwise."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.name = name
        self.address = f"127.0.0.1:{self.server_port}"
        self.pull: Callable[[Handler], None] = Handler.have_pulled
        self.most: int | None = None
        """The bytes after which an answer breaks off."""
        self.read: list[tuple[int, int]] = []
        """The rows that were asked for."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: clients go away."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Shard

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing."""

    def answer(self, status: int, body: bytes, most: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:most])
        self.close_connection = most is not None

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.pull(self)

    def do_GET(self) -> None:
        match = PATH.fullmatch(self.path)
        assert match is not None
        start, first, stop = map(int, match.groups())
        self.server.read.append((start + first, start + stop))
        self.answer(200, TABLE[start + first : start + stop].tobytes(), self.server.most)

    def have_pulled(self) -> None:
        self.answer(200, b'{"sha256": "digest"}')

    def hang(self) -> None:
        """Wait until the client goes."""
        self.connection.recv(1)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[CatalogueClient]:
    with running_database(tmp_path / "database") as database, catalogue_client(database) as one:
        yield one


@contextmanager
def registered(client: CatalogueClient, count: int, ranges: int) -> Iterator[list[Shard]]:
    """Shards s0, s1 and so on, of which two are to have each segment."""
    shards = [Shard(f"s{number}") for number in range(count)]
    threads = [Thread(target=one.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True) for one in shards]
    alive = {f"alive/{one.name}": Mark() for one in shards}
    nodes = {f"nodes/{one.name}": Node(one.address, 1 << 40) for one in shards}
    options = Options(ranges=ranges, replicas=2)
    client.transact(lambda _: Change({"options": options, **nodes, **alive}, leased=frozenset(alive)))
    for thread in threads:
        thread.start()
    try:
        yield shards
    finally:
        for one, thread in zip(shards, threads, strict=True):
            one.shutdown()
            thread.join()
            one.server_close()


def pulled(client: CatalogueClient) -> bytes:
    """The bytes of the table, as they are read while shards pull it."""
    uploads, row = RunningUploads(client, look_s=0.1), TABLE[0].nbytes
    writer = VersionWriter(
        client, ShardAccess(None), "t", DTYPES["int32"], TABLE.shape, lambda number: number * row, uploads
    )
    try:
        return b"".join(writer.pulled_from("https://models.example/t.npy"))
    finally:
        writer.abandon()


def test_the_rows_of_a_segment_are_read_by_one_request(client: CatalogueClient) -> None:
    with registered(client, count=2, ranges=2) as shards:
        assert pulled(client) == TABLE.tobytes()
        middle = len(TABLE) // 2
        assert sorted(rows for one in shards for rows in one.read) == [(0, middle), (middle, len(TABLE))]


def test_when_a_shard_breaks_off_another_one_goes_on_with_the_rows(client: CatalogueClient) -> None:
    with registered(client, count=2, ranges=1) as shards:
        bad, good = shards
        bad.most = 9 << 20
        assert pulled(client) == TABLE.tobytes()
        assert (bad.read, good.read) == ([(0, len(TABLE))], [(1 << 20, len(TABLE))])
        bad.most = good.most = 1
        with pytest.raises(GatherError, match="broke off") as error:
            pulled(client)
        assert error.value.code == "shard_unavailable"


def test_a_shard_that_hangs_in_the_place_of_one_that_was_lost_is_left_once_its_lease_is_over(
    client: CatalogueClient,
) -> None:
    asked: list[str] = []

    def pull(handler: Handler) -> None:
        asked.append(name := handler.server.name)
        if len(asked) == 2:
            handler.answer(503, b"{}")
        elif len(asked) == 3:
            client.transact(lambda catalogue: transitions.mark_lost(catalogue, name))
            handler.hang()
        else:
            handler.have_pulled()

    with registered(client, count=4, ranges=1) as shards:
        for one in shards:
            one.pull = pull
        assert pulled(client) == TABLE.tobytes()
        assert sorted(asked) == ["s0", "s1", "s2", "s3"]
