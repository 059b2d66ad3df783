"""Two shards at each other's addresses: rows are read from the shard that is meant and written to it, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import numpy as np

from app.cluster.catalogue.records import Change, Node, Options, Segment, Table, Version
from app.cluster.router.segment_writer import RAW, SegmentBody, SegmentWriter, ShardAccess
from app.cluster.shard.pull_order import PullSource
from app.tensors.dtypes import DTYPES
from tests.cluster.clustered import catalogue_client, registered, routing
from tests.cluster.databases import RunningDatabase, running_database
from tests.cluster.running import put
from tests.cluster.shard_nodes import KEY, address_of, client_of, digest_of, give, order_of, pull, segments, shard
from tests.cluster.waiting import until
from tests.http.conftest import Start, start
from tests.http.forms import int64
from tests.http.server import Server
from tests.http.tensors import npy

__all__ = ["start"]

ROWS = np.arange(8, dtype=np.int32).reshape(4, 2)


@contextmanager
def two_shards(warmed: Path, folder: Path) -> Iterator[tuple[Server, Server]]:
    with shard(warmed, folder / "a") as first, shard(warmed, folder / "b") as second:
        yield first, second


@contextmanager
def at(database: RunningDatabase, **shards: Server) -> Iterator[None]:
    """These shards in the catalogue, at the addresses of these services."""
    with ExitStack() as stack:
        for name, one in shards.items():
            stack.enter_context(registered(database, name, Node(address_of(one), 1 << 20)))
        yield


def test_a_shard_refuses_what_another_one_is_meant_to_do(warmed: Path, tmp_path: Path) -> None:
    """The field is for routers, shards and reconcilers: OpenAPI does not have it."""
    with (
        two_shards(warmed, tmp_path) as (first, second),
        httpx.Client(base_url=first.url, trust_env=False, headers={"authorization": f"Bearer {KEY}"}) as a,
        client_of(second) as b,
    ):
        tensor = give(a, ROWS)
        gather = {"data": {"tensor": tensor}, "indices": int64([1], [0])}
        asks: list[tuple[str, str, dict[str, Any]]] = [
            ("PUT", "/tensors/c2.0-4", {"content": npy(ROWS)}),
            ("GET", f"/tensors/{tensor}/content", {}),
            ("POST", "/gather", {"json": gather}),
        ]
        for method, path, options in asks:
            refused = a.request(method, path, headers={"x-gathernd-node": "b"}, **options)
            assert (refused.status_code, refused.json()["code"]) == (412, "precondition_failed")
            assert a.request(method, path, headers={"x-gathernd-node": "a"}, **options).is_success
        wrong = PullSource(address_of(first), tensor, node="b")
        failed = pull(b, tensor, order_of(ROWS, wrong))
        assert (failed.status_code, failed.json()["code"]) == (503, "shard_unavailable")
        pull(b, tensor, order_of(ROWS, wrong, PullSource(address_of(first), tensor, node="a"))).raise_for_status()
        assert segments(b) == [tensor]


def test_a_router_reads_and_writes_no_rows_at_the_shard_that_has_got_the_address(
    start: Start, warmed: Path, tmp_path: Path
) -> None:
    with (
        two_shards(warmed, tmp_path) as (first, second),
        client_of(first) as a,
        client_of(second) as b,
        running_database(tmp_path / "database") as database,
        catalogue_client(database) as catalogue,
    ):
        tensor = give(a, ROWS, "c1")
        put(b, tensor, ROWS + 1)  # no shard has other rows by this name: here they say who has answered
        segment = Segment(0, 4, ROWS.nbytes, ("a",), digest_of(ROWS))
        version = Version(1, "c1", DTYPES["int32"], ROWS.shape, (segment,), 1, digest_of(ROWS), ROWS.nbytes)
        options = Options(ranges=1, replicas=1, key=KEY)
        catalogue.transact(lambda _: Change({"options": options, "tables/t": Table((version,), 1, 1)}))
        body = {"data": {"tensor": "t"}, "indices": int64([1], [0])}
        with routing(start, database, "--deadline", "5") as router:
            client = router.shared_client()
            with at(database, a=second, b=first):
                until(lambda: "t" in client.get("/tensors").text, "the table is served")
                assert client.post("/gather", json=body).json()["code"] == "shard_unavailable"
                assert client.put("/tensors/new", content=npy(ROWS)).json()["code"] == "shard_unavailable"
                assert segments(a) == segments(b) == [tensor]
            with at(database, a=first, b=second):
                until(lambda: client.post("/gather", json=body).is_success, "the shards are where they say")
                assert client.post("/gather", json=body).json()["output"]["values"] == ROWS[0].tolist()
                assert client.put("/tensors/new", content=npy(ROWS)).status_code == 201


def test_rows_that_are_pushed_name_the_shard_on_whatever_connection_they_go() -> None:
    named: list[tuple[str, str | None]] = []

    class OneRequest(BaseHTTPRequestHandler):
        """Closes the connection after each answer: the next request may reach another process."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            named.append((self.command, self.headers["X-Gathernd-Node"]))
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"{}")

        do_PUT = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), OneRequest) as server:
        Thread(target=server.serve_forever).start()
        address = f"127.0.0.1:{server.server_port}"
        body = SegmentBody("/tensors/c.0-4", RAW, ROWS.nbytes, ROWS.nbytes)
        writer = SegmentWriter(ShardAccess(None), "a", address, body, lambda: False)
        writer.write(ROWS.tobytes())
        writer.end()
        writer.finish()
        server.shutdown()
    assert writer.failure is None
    assert named == [("GET", "a"), ("PUT", "a")]
