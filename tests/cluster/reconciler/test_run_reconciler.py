"""A reconciler among real shards and a database: what it has pulled, dropped and listed, and who takes over."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.cluster.catalogue.records import Mark, Options
from app.cluster.catalogue.transitions import set_replicas
from tests.cluster.reconciler.clustered_shards import ClusteredShards, clustered_shards, rows_of
from tests.cluster.shard_nodes import KEY
from tests.cluster.waiting import until
from tests.free_port import free_port
from tests.parity.items import Array

ROWS = rows_of()


@pytest.fixture(scope="module")
def shards(warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusteredShards]:
    with clustered_shards(warmed, tmp_path_factory.mktemp("clustered"), "a", "b", "c") as found:
        yield found


@pytest.fixture
def cluster(shards: ClusteredShards) -> Iterator[ClusteredShards]:
    """A cluster without tables, in which a reconciler is in office."""
    tables = {f"tables__{name}": None for name in shards.newest.tables}
    marks = {f"drained__{name}": None for name in shards.newest.drained}
    shards.write(**tables, **marks, options=Options(key=KEY))
    shards.set_alive(*shards.nodes)
    shards.start_reconciler()
    yield shards
    shards.stop_reconcilers()


def test_what_a_lost_shard_has_is_pulled_elsewhere_and_dropped_when_it_is_back(cluster: ClusteredShards) -> None:
    tensor = cluster.publish("items", ROWS, "a", "b")
    cluster.set_alive("b", "c")
    until(lambda: cluster.nodes_of("items") == [(0, 60, {"b", "c"})], "the copy is listed")
    assert "c" in cluster.held(tensor)
    cluster.set_alive("a", "b", "c")
    until(lambda: cluster.held(tensor) == {"b", "c"}, "what nobody wants is dropped")


@pytest.mark.slow
def test_a_drained_shard_gives_up_what_it_has_once_another_one_has_it(cluster: ClusteredShards) -> None:
    tensor = cluster.publish("users", ROWS, "a", "b")
    cluster.write(drained__b=Mark())
    until(lambda: cluster.held(tensor) == {"a", "c"}, "the segment has moved")
    assert cluster.nodes_of("users") == [(0, 60, {"a", "c"})]


def test_a_shard_gets_back_what_it_has_lost(cluster: ClusteredShards) -> None:
    tensor = cluster.publish("lost", ROWS, "a", "b")
    cluster.clients["a"].delete(f"/tensors/{tensor}").raise_for_status()
    until(lambda: cluster.held(tensor) == {"a", "b"}, "it is pulled again")
    assert cluster.nodes_of("lost") == [(0, 60, {"a", "b"})]


@pytest.mark.slow
def test_replicas_are_added_and_taken_away(cluster: ClusteredShards) -> None:
    tensor = cluster.publish("wide", ROWS, "a", replicas=3)
    until(lambda: cluster.nodes_of("wide") == [(0, 60, {"a", "b", "c"})], "three replicas")
    cluster.catalogue.transact(lambda catalogue: set_replicas(catalogue, "wide", 1))
    until(lambda: len(cluster.held(tensor)) == 1, "one replica")
    assert cluster.nodes_of("wide") == [(0, 60, cluster.held(tensor))]


@pytest.mark.parametrize("rows", [ROWS, np.array(["a", "", "longer words", "é"] * 15, object)], ids=["rows", "strings"])
@pytest.mark.slow
def test_a_large_segment_is_cut_in_two(cluster: ClusteredShards, rows: Array) -> None:
    tensor = cluster.publish("large", rows, "a", "b")
    size = cluster.newest.tables["large"].versions[0].segments[0].size
    cluster.write(options=Options(key=KEY, segment_bytes=size - 1))
    until(lambda: cluster.nodes_of("large") == [(0, 30, {"a", "b"}), (30, 60, {"a", "b"})], "two segments")
    assert cluster.held(tensor.replace(".0-60", ".30-60")) == {"a", "b"}
    until(lambda: not cluster.held(tensor), "the old one is dropped")


@pytest.mark.slow
def test_another_reconciler_takes_over(cluster: ClusteredShards) -> None:
    first = cluster.newest.reconciler
    (running,) = cluster.reconcilers
    cluster.start_reconciler()
    assert cluster.newest.reconciler == first
    running.kill()
    until(lambda: cluster.newest.reconciler not in (first, None), "the other one is in office")


@pytest.mark.slow
def test_a_reconciler_that_stood_still_while_another_took_over_does_no_harm(cluster: ClusteredShards) -> None:
    """It goes on after its lease has ended: it changes nothing, and the other one stays in office."""
    tensor = cluster.publish("items", ROWS, "a", "b")
    (running,) = cluster.reconcilers
    cluster.start_reconciler()
    first = cluster.newest.reconciler
    running.send_signal(signal.SIGSTOP)
    try:
        until(lambda: cluster.newest.reconciler not in (first, None), "the other one is in office")
        second = cluster.newest.reconciler
        cluster.set_alive("b", "c")
        until(lambda: cluster.nodes_of("items") == [(0, 60, {"b", "c"})], "the copy is listed")
    finally:
        running.send_signal(signal.SIGCONT)
    cluster.set_alive("a", "b", "c")
    until(lambda: cluster.held(tensor) == {"b", "c"}, "what nobody wants is dropped")
    assert running.poll() is None
    assert cluster.newest.reconciler == second
    assert cluster.nodes_of("items") == [(0, 60, {"b", "c"})]


@pytest.mark.slow
def test_a_reconciler_goes_on_when_the_database_is_back(cluster: ClusteredShards) -> None:
    tensor = cluster.publish("items", ROWS, "a", "b")
    cluster.database.stop()
    cluster.database.begin()
    cluster.set_alive("b", "c")
    until(lambda: cluster.nodes_of("items") == [(0, 60, {"b", "c"})], "the copy is listed")
    assert "c" in cluster.held(tensor)


@pytest.mark.slow
def test_metrics_say_how_the_cluster_stands(cluster: ClusteredShards) -> None:
    cluster.stop_reconcilers()
    port = free_port()
    cluster.start_reconciler(str(port))
    cluster.publish("items", ROWS, "a", replicas=4)

    def said(line: str) -> bool:
        return line in httpx.get(f"http://127.0.0.1:{port}/metrics").text.splitlines()

    until(lambda: said("gathernd_reconciler_segments_short 1.0"), "one replica is missing")
    assert said("gathernd_reconciler_in_office 1.0")
    assert said('gathernd_reconciler_shard_alive{node="a"} 1.0')
