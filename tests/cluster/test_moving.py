"""Segments that move while they are asked for, and a table that is larger than any one shard may hold."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from app.cluster.catalogue import transitions
from app.cluster.catalogue.records import Change
from gathernd import Client, errors
from gathernd_cli.tensors_command import app as commands
from tests.cluster.clustered import OPTIONS, Clustered, clustered, reconciling, until
from tests.cluster.running import put
from tests.cluster.shard_nodes import client_of
from tests.free_port import free_port
from tests.http.conftest import Start, start
from tests.http.forms import int64
from tests.http.server import Server
from tests.http.tensors import RAW, npy
from tests.imports.range_server import range_server
from tests.parity.messages import raw

__all__ = ["start"]

TABLE = np.arange(2000 * 8, dtype=np.int32).reshape(2000, 8)


@contextmanager
def asked_all_the_time(router: Server) -> Iterator[list[str]]:
    """A load of lookups; what failed is in the list, and must be nothing at the end."""
    over, failures, answers = Event(), list[str](), 0

    def ask() -> None:
        nonlocal answers
        random = np.random.default_rng(1)
        with router.client() as client:
            while not over.is_set():
                rows = random.integers(0, len(TABLE), 32)
                body = {"data": {"tensor": "items"}, "indices": int64([32], rows.tolist())}
                answer = client.post("/gather", json=body)
                answers += 1
                if not answer.is_success:
                    failures.append(answer.text)
                elif answer.json()["output"]["values"] != TABLE[rows].ravel().tolist():
                    failures.append("wrong rows")

    thread = Thread(target=ask)
    thread.start()
    try:
        yield failures
    finally:
        over.set()
        thread.join()
    assert failures == []
    assert answers


@pytest.fixture(scope="module")
def cluster(start: Start, warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    with clustered(start, warmed, tmp_path_factory.mktemp("cluster"), 3) as running:
        put(running.router.shared_client(), "items", TABLE)
        yield running


def is_whole(cluster: Clustered, *without: str, count: int = 2) -> bool:
    """Whether each segment of the table is on so many shards, none of them in `without`, and no shard has more."""
    segments = cluster.segments("items")
    placed = all(len(set(one.nodes)) == count and not set(one.nodes) & set(without) for one in segments)
    return placed and cluster.wanted() == cluster.stored()


def test_a_shard_gets_back_what_it_has_lost(cluster: Clustered) -> None:
    with asked_all_the_time(cluster.router):
        node = cluster.segments("items")[0].nodes[0]
        with client_of(cluster.shards[node]) as stored:
            for one in stored.get("/tensors").json()["tensors"]:
                assert stored.delete(f"/tensors/{one['name']}").status_code == 204
        assert not is_whole(cluster)
        until(lambda: is_whole(cluster), "the segments are there again")


@pytest.mark.slow
def test_a_table_has_as_many_replicas_as_its_upload_and_later_changes_say(
    cluster: Clustered, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(cluster.router.url) as service:
        assert service.put("items", TABLE, replicas=1).replicas == 1
        until(lambda: is_whole(cluster, count=1), "each segment is on one shard")
        with asked_all_the_time(cluster.router):
            monkeypatch.setenv("GATHERND_URL", cluster.router.url)
            assert CliRunner().invoke(commands, ["replicas", "items", "2"]).exit_code == 0
            assert service.metadata("items").replicas == 2
            until(lambda: is_whole(cluster), "each segment is on two shards")
            told = service.metadata("items").ranges
            assert [len(one.shards) for one in told] == [2] * OPTIONS.ranges
            shown = CliRunner().invoke(commands, ["show", "items"]).output.splitlines()
            assert f"range\t{told[0].start}-{told[0].stop - 1}: {', '.join(told[0].shards)}" in shown
            assert CliRunner().invoke(commands, ["ls"]).output.splitlines()[0].split("\t")[-1] == "2"
            version = service.put("items", TABLE)
            assert version.replicas == 2, "it is kept for later uploads"
            assert service.set_replicas("items", 1).replicas == 1
            until(lambda: is_whole(cluster, count=1), "each segment is on one shard")
            assert service.set_replicas("items", 2).replicas == 2
        service.put("others", TABLE[:10])
        assert service.metadata("others").replicas == OPTIONS.replicas
        service.put_alias("live", f"items@{version.version}")
        with pytest.raises(errors.NameConflict):
            service.set_replicas("live", 2)
        with pytest.raises(errors.TensorNotFound):
            service.set_replicas("none", 2)
        for number in (0, 101, "two"):
            for ask in (service.set_replicas, lambda name, number: service.put(name, TABLE, replicas=number)):
                with pytest.raises(errors.InvalidField, match="from 1 to 100"):
                    ask("items", number)  # type: ignore[arg-type]
        assert "replicas set" in cluster.router.log_text()


@pytest.mark.slow
def test_large_segments_are_cut_in_two(cluster: Clustered) -> None:
    words = np.array(["a", "", "longer words " * 500, "é"] * 15, object)
    put(cluster.router.shared_client(), "words", words)
    limit = max(one.size for one in cluster.segments("items")) + 1
    assert all(one.size > limit for one in cluster.segments("words"))
    cluster.client.transact(lambda at: Change({"options": replace(at.options, segment_bytes=limit)}))
    with asked_all_the_time(cluster.router):
        until(lambda: all(one.size <= limit for one in cluster.segments("words")), "the segments are cut")
        until(lambda: cluster.wanted() == cluster.stored(), "the old ones are dropped")
    found = cluster.router.shared_client().get("/tensors/words/content", headers={"accept": RAW})
    assert found.content == raw(words)
    cluster.client.transact(lambda at: Change({"options": replace(at.options, segment_bytes=None)}))


@pytest.mark.slow
def test_segments_go_to_a_shard_that_comes_and_leave_one_that_is_drained(cluster: Clustered) -> None:
    with asked_all_the_time(cluster.router):
        cluster.begin("s3")
        until(lambda: any("s3" in one.nodes for one in cluster.segments("items")), "the new shard has segments")
        cluster.drain("s0")
        until(lambda: is_whole(cluster, "s0"), "the drained shard has none")
    cluster.client.transact(lambda at: transitions.undrain(at, "s0"))


@pytest.mark.slow
def test_a_reconciler_that_stood_still_while_another_took_over_does_no_harm(cluster: Clustered) -> None:
    """Etcd restarts meanwhile. The first one goes on after its lease has ended: the other one stays in office."""
    first, port = cluster.catalogue.reconciler, free_port()

    def metrics() -> list[str]:
        return httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text.splitlines()

    with reconciling(cluster.database, str(port)):
        cluster.reconciler.send_signal(signal.SIGSTOP)
        try:
            until(lambda: cluster.catalogue.reconciler not in (first, None), "the other one is in office")
            cluster.database.stop()
            cluster.database.begin()
            second = cluster.catalogue.reconciler
            cluster.client.transact(lambda at: transitions.set_replicas(at, "items", 5))
            until(lambda: "gathernd_reconciler_segments_short 4.0" in metrics(), "one shard is missing")
            assert {"gathernd_reconciler_in_office 1.0", 'gathernd_reconciler_shard_alive{node="s1"} 1.0'} <= {
                *metrics()
            }
            cluster.client.transact(lambda at: transitions.set_replicas(at, "items", 2))
            cluster.drain("s1")
        finally:
            cluster.reconciler.send_signal(signal.SIGCONT)
        until(lambda: is_whole(cluster, "s1"), "the drained shard has none")
        assert cluster.reconciler.poll() is None
        assert cluster.catalogue.reconciler == second
    cluster.client.transact(lambda at: transitions.undrain(at, "s1"))


@pytest.mark.slow
def test_segments_of_a_lost_shard_are_copied(cluster: Clustered) -> None:
    """The last test of its cluster: it kills a shard."""
    with asked_all_the_time(cluster.router):
        lost = cluster.segments("items")[0].nodes[0]
        cluster.kill(lost)
        until(lambda: is_whole(cluster, lost), "others have its segments")


@pytest.mark.slow
@pytest.mark.parametrize(("ranges", "replicas"), [(2, 1), pytest.param(4, 2, marks=pytest.mark.soak)])
def test_a_table_larger_than_any_one_shard_is_put_served_and_replaced(
    start: Start, warmed: Path, tmp_path: Path, ranges: int, replicas: int
) -> None:
    """Stores of 1.1 times a segment, twice as many as copies of segments: replacements, one at once after the other."""
    size = 10**6
    table = np.arange(ranges * size // 4, dtype=np.int32).reshape(-1, 8)
    limit = int(1.1 * size)
    options = replace(OPTIONS, ranges=ranges, replicas=replicas)
    own = "--max-store-bytes", str(limit)
    with clustered(start, warmed, tmp_path, 2 * ranges * replicas, options, shard_flags=own) as cluster:
        client = cluster.router.shared_client()
        for number in range(4):
            answer = put(client, "items", table + number)
            assert answer.json()["version"] == number + 1
            version = table + number
            found = client.get("/tensors/items/content", headers={"accept": RAW}).content
            assert found == version.tobytes()
            rows = np.random.default_rng(number).integers(0, len(table), 64)
            body = {"data": {"tensor": "items"}, "indices": int64([64], rows.tolist())}
            assert client.post("/gather", json=body).json()["output"]["values"] == version[rows].ravel().tolist()
            assert all(node.capacity < limit < table.nbytes for node in cluster.catalogue.nodes.values())
        until(lambda: len(cluster.stored()) == ranges * replicas, "the older versions are dropped")
        length = len(table) + len(table) // 8
        query = {"dtype": "int32", "shape": f"{length},8"}
        headers = {"content-type": RAW}
        large = client.put("/tensors/large", params=query, content=bytes(length * 32), headers=headers)
        assert (large.status_code, large.json()["code"]) == (507, "insufficient_storage")


@pytest.mark.slow
def test_an_imported_table_comes_back_when_its_only_shard_loses_it(start: Start, warmed: Path, tmp_path: Path) -> None:
    with range_server() as source:
        source.files = {"/tables/a.npy": npy(TABLE)}
        allowed = "--import-from", f"{source.url}/tables/"
        options = replace(OPTIONS, ranges=3, replicas=1)
        with clustered(start, warmed, tmp_path, 1, options, flags=allowed, shard_flags=allowed) as cluster:
            client = cluster.router.shared_client()
            answer = client.post("/tensors/items/import", json={"url": f"{source.url}/tables/a.npy"})
            assert answer.status_code == 202, answer.text
            until(lambda: client.get(answer.headers["location"]).json()["state"] == "done", "the import is done")
            lost = cluster.stored()
            assert lost == cluster.wanted()
            with client_of(cluster.shards["s0"]) as stored:
                for _, tensor in lost:
                    assert stored.delete(f"/tensors/{tensor}").status_code == 204
                until(lambda: cluster.stored() == lost, "the segments are there again")
                found = client.get("/tensors/items/content", headers={"accept": RAW})
                assert found.content == TABLE.tobytes()
                # A file that has other rows by now is not taken for the table.
                source.files["/tables/a.npy"] = npy(TABLE + 1)
                assert stored.delete(f"/tensors/{next(iter(lost))[1]}").status_code == 204
            refused = client.get("/tensors/items/content", headers={"accept": RAW})
            assert refused.json()["code"] == "shard_unavailable"
