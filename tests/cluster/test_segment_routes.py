"""The internal routes of a shard: what it lists, pulls and drops, and for whom."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import numpy as np
import pytest

from app.cluster.shard.pull_order import PullSource
from tests.cluster.shard_nodes import (
    KEY,
    address_of,
    client_of,
    digest_of,
    give,
    order_of,
    pull,
    segments,
    shard,
)
from tests.for_each import for_each
from tests.http.conftest import Start
from tests.http.held import until
from tests.http.server import Server
from tests.http.tensors import RAW, npy
from tests.imports.range_server import range_server
from tests.parity.messages import saved

ROWS = np.arange(90 * 3, dtype=np.complex64).reshape(90, 3)
LARGE = np.random.default_rng(1).integers(0, 256, (64, 1 << 20), np.uint8)


@pytest.fixture(scope="module")
def running(warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    folder = tmp_path_factory.mktemp("shards")
    with shard(warmed, folder / "a") as first, shard(warmed, folder / "b") as second:
        yield first, second


@pytest.fixture
def clients(running: tuple[Server, Server]) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Clients of both shards, which have nothing."""
    with client_of(running[0]) as first, client_of(running[1]) as second:
        for client in (first, second):
            fence = client.get("/shard/segments").json()["fence"]
            for tensor in segments(client):
                assert client.delete(f"/shard/segments/{tensor}", params={"fence": fence}).status_code == 204
        yield first, second


def test_the_routes_are_those_of_shards_alone(start: Start, running: tuple[Server, Server]) -> None:
    with start("--kernel", "numpy") as server:
        answer = server.shared_client().get("/shard/segments")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert "/shard/segments" not in running[0].shared_client().get("/openapi.json").text


def test_callers_need_the_key_of_the_cluster(running: tuple[Server, Server]) -> None:
    client = running[0].shared_client()
    for path in ("/shard/segments", "/tensors"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers={"authorization": "Bearer other"}).status_code == 401
        assert client.get(path, headers={"authorization": f"Bearer {KEY}"}).status_code == 200


def test_a_replica_takes_records_of_any_size_that_its_memory_holds(running: tuple[Server, Server]) -> None:
    with closing(HTTPConnection(address_of(running[0]), timeout=10)) as connection:
        connection.putrequest("POST", "/shard/ranges/c.c1.0-9/records")
        for name, value in (("authorization", f"Bearer {KEY}"), ("content-length", str(1 << 45))):
            connection.putheader(name, value)
        connection.endheaders()
        refusal = json.loads(connection.getresponse().read())
    assert (refusal["code"], refusal["limit"]) == ("payload_too_large", "memory_budget")


def test_orders_for_another_shard_are_refused(clients: tuple[httpx.Client, httpx.Client]) -> None:
    client, other = clients
    tensor = give(client, ROWS)
    for method, path in (
        ("GET", "/shard/segments?fence=1"),
        ("POST", f"/shard/segments/{tensor}"),
        ("DELETE", f"/shard/segments/{tensor}?fence=1"),
        ("GET", "/shard/room?bytes=1"),
        ("PUT", "/tensors/c2.0-90"),
        ("GET", f"/tensors/{tensor}/content"),
    ):
        content = {"POST": order_of(ROWS).to_json(), "PUT": npy(ROWS)}.get(method, b"")
        answer = client.request(method, path, content=content, headers={"x-gathernd-node": "b"})
        assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed"), method
    assert segments(client) == [tensor]
    assert other.get("/shard/segments", headers={"x-gathernd-node": "b"}).status_code == 200


def test_a_segment_is_pulled_whole_and_in_part(
    running: tuple[Server, Server], clients: tuple[httpx.Client, httpx.Client]
) -> None:
    source, client = clients
    whole = give(source, ROWS)
    address = address_of(running[0])
    for order, rows, tensor in (
        (order_of(ROWS, PullSource(address, whole)), ROWS, whole),
        (order_of(ROWS[31:77], PullSource(address, whole, (31, 77)), sha256="", size=0), ROWS[31:77], "c2.31-77"),
    ):
        answer = pull(client, tensor, order)
        assert answer.json() == {"tensor": tensor, "size": rows.nbytes, "sha256": digest_of(rows)}
        found = client.get(f"/tensors/{tensor}/content", headers={"accept": RAW})
        assert found.content == rows.tobytes()
        assert found.headers["x-gathernd-shape"] == f"{len(rows)},3"


def test_rows_with_another_digest_are_not_taken(
    running: tuple[Server, Server], clients: tuple[httpx.Client, httpx.Client]
) -> None:
    source, client = clients
    right, wrong = give(source, ROWS), give(source, ROWS + 1, "c2")
    address = address_of(running[0])
    answer = pull(client, "c3.0-90", order_of(ROWS, PullSource(address, wrong)))
    assert (answer.status_code, answer.json()["code"]) == (503, "shard_unavailable")
    assert "other rows" in answer.json()["detail"]
    assert segments(client) == []
    # The next source has them.
    pull(client, "c3.0-90", order_of(ROWS, PullSource(address, wrong), PullSource(address, right))).raise_for_status()
    assert segments(client) == ["c3.0-90"]


@for_each(
    "source",
    [
        PullSource("127.0.0.1:9", "c1.0-90"),
        PullSource("SELF", "missing.0-90"),
        PullSource("SELF", "c1.0-90", (0, 89)),
        PullSource("SELF", "c1.0-90", (1, 91)),
        PullSource("SELF", "c4.0-90"),
    ],
)
def test_a_source_that_does_not_have_the_rows_is_passed_over(
    source: PullSource, running: tuple[Server, Server], clients: tuple[httpx.Client, httpx.Client]
) -> None:
    holder, client = clients
    give(holder, ROWS)
    give(holder, ROWS.view(np.float64).copy(), "c4")  # of another type
    address = address_of(running[0])
    bad = PullSource(source.address.replace("SELF", address), source.tensor, source.rows)
    answer = pull(client, "c1.0-90", order_of(ROWS, bad))
    assert (answer.status_code, answer.json()["code"]) == (503, "shard_unavailable")
    assert segments(client) == []
    pull(client, "c1.0-90", order_of(ROWS, bad, PullSource(address, "c1.0-90"))).raise_for_status()
    client.delete("/shard/segments/c1.0-90", params={"fence": 1}).raise_for_status()


class Halting:
    """A source that sends a part of the rows, and then says nothing more until `end` is called."""

    def __init__(self, rows: Any, sent: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._rows, self._sent = rows, sent
        self.has_sent = False
        self._connection: socket.socket | None = None
        self._thread = Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        self._connection, _ = self._listener.accept()
        self._connection.recv(1 << 16)
        shape = ",".join(map(str, self._rows.shape))
        head = (
            f"HTTP/1.1 200 OK\r\nX-Gathernd-Dtype: {self._rows.dtype}\r\nX-Gathernd-Shape: {shape}\r\n"
            f"Content-Length: {self._rows.nbytes}\r\n\r\n"
        )
        self._connection.sendall(head.encode() + self._rows.tobytes()[: self._sent])
        self.has_sent = True

    def end(self) -> None:
        self._listener.close()
        if self._connection is not None:
            self._connection.close()
        self._thread.join(10)


def test_a_source_that_is_lost_midway_is_followed_by_the_next(
    running: tuple[Server, Server], clients: tuple[httpx.Client, httpx.Client]
) -> None:
    holder, client = clients
    whole = give(holder, LARGE)
    halting = Halting(LARGE, 3 << 20)
    answers: list[httpx.Response] = []
    order = order_of(LARGE, PullSource(halting.address, whole), PullSource(address_of(running[0]), whole))
    asking = Thread(target=lambda: answers.append(pull(client, whole, order)))
    asking.start()
    until(lambda: halting.has_sent)
    halting.end()
    asking.join(60)
    assert answers[0].json()["sha256"] == digest_of(LARGE)


def incoming(folder: Path) -> list[Path]:
    return list((folder / "store" / "incoming").iterdir())


def test_a_pull_ends_and_leaves_nothing_when_its_caller_goes(warmed: Path, tmp_path: Path) -> None:
    halting = Halting(LARGE, 3 << 20)
    with shard(warmed, tmp_path / "a") as running, client_of(running) as client:
        with pytest.raises(httpx.ReadTimeout):
            pull(client, "c1.0-64", order_of(LARGE, PullSource(halting.address, "c1.0-64")), timeout=1)
        assert halting.has_sent
        client.close()
        until(lambda: incoming(tmp_path / "a") == [])
        with client_of(running) as other:
            assert segments(other) == []
    halting.end()


def test_a_pull_without_room_is_refused(warmed: Path, tmp_path: Path, running: tuple[Server, Server]) -> None:
    with client_of(running[0]) as source:
        tensor = give(source, LARGE)
    with shard(warmed, tmp_path / "a", "--max-store-bytes", "1MiB") as small, client_of(small) as client:
        order = order_of(LARGE, PullSource(address_of(running[0]), tensor))
        answer = pull(client, tensor, order)
        assert (answer.status_code, answer.json()["code"]) == (507, "insufficient_storage")
        assert segments(client) == []
        assert incoming(tmp_path / "a") == []


def test_rows_are_read_again_from_where_they_were_imported(warmed: Path, tmp_path: Path) -> None:
    with range_server() as source:
        source.files = {
            "/tables/a.npy": npy(ROWS),
            "/tables/big.npy": npy(ROWS.astype(">c8")),
            "/tables/columns.npy": npy(np.asfortranarray(ROWS)),
            "/tables/two.safetensors": saved({"one": ROWS, "other": ROWS + 1}),
            "/tables/text": b"no table",
            "/secret/a.npy": npy(ROWS),
        }
        prefix = f"{source.url}/tables/"
        with shard(warmed, tmp_path / "a", "--import-from", prefix) as running, client_of(running) as client:
            for place, table in (
                ("a.npy", ROWS),
                ("big.npy", ROWS),
                ("two.safetensors#one", ROWS),
                ("two.safetensors#other", ROWS + 1),
            ):
                for first, last in ((0, 90), (0, 1), (31, 77), (89, 90)):
                    rows = table[first:last]
                    right_order = order_of(rows, origin=prefix + place, origin_rows=(first, last))
                    wrong = pull(client, f"o.{first}-{last}", replace(right_order, sha256="0" * 64))
                    assert "other rows" in wrong.json()["detail"]
                    assert segments(client) == []
                    right = pull(client, f"o.{first}-{last}", right_order)
                    assert right.json()["sha256"] == digest_of(rows), right.text
                    client.delete(f"/shard/segments/o.{first}-{last}", params={"fence": 1}).raise_for_status()
            for origin in (
                prefix + "missing.npy",
                prefix + "columns.npy",
                prefix + "two.safetensors",
                prefix + "two.safetensors#third",
                prefix + "text",
                f"{source.url}/secret/a.npy",
            ):
                order = order_of(ROWS[:10], origin=origin, origin_rows=(0, 10), sha256="")
                assert pull(client, "o.0-10", order).json()["code"] == "shard_unavailable"
            order = order_of(ROWS[:11], origin=prefix + "a.npy", origin_rows=(80, 91), sha256="")
            assert pull(client, "o.80-91", order).json()["code"] == "shard_unavailable"
            assert segments(client) == []


def test_an_earlier_reconciler_is_refused(warmed: Path, tmp_path: Path) -> None:
    with shard(warmed, tmp_path / "a") as running, client_of(running) as client:
        tensor = give(client, ROWS)
        assert client.get("/shard/segments").json()["fence"] == 0
        assert client.get("/shard/segments", params={"fence": 7}).json()["fence"] == 7
        assert client.get("/shard/segments", params={"fence": 7}).json()["fence"] == 7
        refused = [
            client.get("/shard/segments", params={"fence": 6}),
            client.delete(f"/shard/segments/{tensor}", params={"fence": 6}),
            pull(client, "c2.0-90", order_of(ROWS, fence=6)),
        ]
        for answer in refused:
            assert (answer.status_code, answer.json()["code"]) == (412, "precondition_failed")
        assert segments(client) == [tensor]
        own = order_of(ROWS, PullSource(address_of(running), tensor), fence=None)
        assert pull(client, "c3.0-90", own).is_success, "a router's pull has no fence"
        client.delete("/shard/segments/c2.0-90", params={"fence": 8}).raise_for_status()
        assert client.get("/shard/segments").json()["fence"] == 8
        assert client.get("/shard/segments", params={"fence": 7}).status_code == 412


def test_the_fence_outlives_the_process(warmed: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        running = stack.enter_context(shard(warmed, tmp_path / "a"))
        client = stack.enter_context(client_of(running))
        client.get("/shard/segments", params={"fence": 7}).raise_for_status()
        running.stop(signal.SIGKILL)
        with pytest.raises(AssertionError, match="exit code -9"):
            stack.close()
    with shard(warmed, tmp_path / "a", "--workers", "2") as running:
        for _ in range(8):  # asks both workers
            with client_of(running) as client:
                assert client.get("/shard/segments", params={"fence": 6}).status_code == 412


def test_room_is_told_before_rows_are_sent(warmed: Path, tmp_path: Path) -> None:
    with shard(warmed, tmp_path / "a", "--max-store-bytes", "1000000") as running, client_of(running) as client:
        assert client.get("/shard/room?bytes=900000").status_code == 204
        give(client, np.zeros((100_000, 1), np.float32))
        refused = client.get("/shard/room?bytes=900000")
        assert (refused.status_code, refused.json()["code"]) == (507, "insufficient_storage")
        assert client.get("/shard/room").json()["code"] == "invalid_field"
        assert client.get(f"/shard/room?bytes={1 << 59}").status_code == 507
