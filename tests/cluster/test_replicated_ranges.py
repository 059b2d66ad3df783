"""Ranges that take scatters, on real shards: acknowledged is on every replica, once, whatever shards die."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.cluster.catalogue import ranges
from app.cluster.catalogue.records import Change, Options, RangeRecord
from tests.cluster.clustered import Clustered, clustered
from tests.cluster.replicated import KEYS, Replicated, kill, stopped
from tests.cluster.shard_nodes import KEY, client_of
from tests.cluster.waiting import until
from tests.http.conftest import Start

ROWS = np.arange(40, dtype=np.int64).reshape(20, 2)
NODES = ("s0", "s1", "s2")


@pytest.fixture(scope="module")
def cluster(start: Start, warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    options = Options(ranges=1, replicas=3, key=KEY)
    with clustered(start, warmed, tmp_path_factory.mktemp("cluster"), options=options) as made:
        yield made


def test_an_acknowledged_scatter_is_on_every_replica(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "each", ROWS)
    (tensor,) = table.tensors
    assert table.scatter(tensor, [3, 3], [[1, 2], [10, 20]], next(KEYS)).sequence == 1
    expected = ROWS.copy()
    expected[3] += [11, 22]
    for node in NODES:
        table.first_row(node, tensor, 1)
        assert np.array_equal(table.rows(node, tensor, 1), expected.reshape(-1))


def test_a_replica_that_does_not_answer_leaves_and_joins_again_by_the_log(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "leaves", ROWS)
    (tensor,) = table.tensors
    table.scatter(tensor, [0], [[1, 1]], next(KEYS))
    primary = table.record(tensor).primary
    away, other = (node for node in NODES if node != primary)
    with stopped(cluster, away):
        assert table.scatter(tensor, [0], [[1, 1]], next(KEYS)).sequence == 2
        assert set(table.record(tensor).in_sync) == {primary, other}
        assert measured(cluster, other, "gathernd_ranges_in_sync") >= 1
    table.until_in_sync(tensor, *NODES)
    assert table.scatter(tensor, [0], [[1, 1]], next(KEYS)).sequence == 3
    for node in NODES:
        assert table.first_row(node, tensor, 3) == [3, 4]
    until(lambda: measured(cluster, away, "gathernd_ranges_out_of_sync") == 0, "it is in sync with all")
    for name in (
        'scatters_total{outcome="ok"}', 'replicas_left_total{why="silent"}', "replicas_joined_total", "takeovers_total",
    ):  # fmt: skip
        assert measured(cluster, primary, f"gathernd_range_{name}") >= 1, name
    assert measured(cluster, primary, "gathernd_ranges_primary") >= 1
    assert measured(cluster, primary, "gathernd_catalogue_age_seconds") < 15


def measured(cluster: Clustered, node: str, name: str) -> float:
    """The value of a series in a shard's /metrics."""
    with client_of(cluster.shards[node]) as asked:
        lines = asked.get("/metrics").text.splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} "))


def test_scatters_are_refused_while_too_few_replicas_are_in_sync(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "few", ROWS)
    (tensor,) = table.tensors
    primary = table.record(tensor).primary
    first, second = (node for node in NODES if node != primary)
    with stopped(cluster, first), stopped(cluster, second):
        refused = table.send(primary, tensor, [0], [[1, 1]], "few")
        assert (refused.status_code, refused.json()["code"]) == (503, "shard_unavailable")
        again = table.send(primary, tensor, [0], [[1, 1]], "few")
        assert "a scatter needs 2" in again.json()["detail"]
        assert measured(cluster, primary, "gathernd_ranges_refusing_scatters") == 1
    assert table.scatter(tensor, [0], [[1, 1]], "few").sequence == 1
    table.until_in_sync(tensor, *NODES)
    for node in NODES:
        assert table.first_row(node, tensor, 1) == [1, 2]


def test_a_replica_that_is_not_in_sync_refuses_reads(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "reads", ROWS)
    (tensor,) = table.tensors
    table.scatter(tensor, [0], [[1, 1]], next(KEYS))
    record = table.record(tensor)
    out = next(node for node in NODES if node != record.primary)
    assert table.refusal(out, tensor, 2) == "precondition_failed"  # it is at 1
    cluster.client.transact(lambda at: ranges.leave_in_sync(at, tensor, record.epoch, frozenset({out})))
    until(lambda: isinstance(table.rows(out, tensor), str) or out in table.record(tensor).in_sync, "it refuses")


def test_only_the_primary_takes_scatters(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "primary", ROWS)
    (tensor,) = table.tensors
    other = next(node for node in NODES if node != table.record(tensor).primary)
    refused = table.send(other, tensor, [0], [[1, 1]], next(KEYS))
    assert (refused.status_code, refused.json()["code"]) == (412, "precondition_failed")


def test_a_deposed_primary_commits_nothing(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "deposed", ROWS)
    (tensor,) = table.tensors
    table.scatter(tensor, [0], [[1, 1]], next(KEYS))
    old = table.record(tensor).primary
    with stopped(cluster, old):
        record = table.record(tensor)
        left = tuple(node for node in record.in_sync if node != old)
        led = RangeRecord(record.epoch + 1, left[0], left)
        cluster.client.transact(lambda at: Change({f"ranges/{tensor}": led}))
        assert table.scatter(tensor, [0], [[1, 1]], next(KEYS)).sequence == 2
    answer = table.send(old, tensor, [0], [[1, 1]], "late", epoch=record.epoch)
    assert answer.status_code in (412, 503), answer.text
    table.until_in_sync(tensor, *NODES)
    assert table.scatter(tensor, [0], [[1, 1]], "late").sequence == 3
    for node in NODES:
        assert table.first_row(node, tensor, 3) == [3, 4]


@pytest.mark.slow
def test_a_replica_whose_disk_was_put_back_serves_nothing_before_the_primary_has_told_it(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "restored", ROWS)
    (tensor,) = table.tensors
    table.scatter(tensor, [0], [[1, 1]], next(KEYS))
    primary = table.record(tensor).primary
    back = next(node for node in NODES if node != primary)
    store, kept = cluster.folder / back / "store", cluster.folder / "kept"
    cluster.kill(back)
    shutil.copytree(store, kept)
    cluster.begin(back)
    assert table.first_row(back, tensor, 1) == [1, 2]
    table.scatter(tensor, [0], [[1, 1]], next(KEYS))
    table.until_in_sync(tensor, *NODES)
    assert table.first_row(back, tensor, 2) == [2, 3]
    cluster.kill(back)
    shutil.rmtree(store)
    kept.rename(store)
    path = f"/tensors/{tensor}/content"
    with stopped(cluster, primary):
        cluster.begin(back, registered=False)
        assert back in table.record(tensor).in_sync
        until(lambda: "etcd" not in table.ask(back, "GET", path).text, "it knows the catalogue", 10)
        assert table.refusal(back, tensor) == "precondition_failed"
    assert table.first_row(back, tensor, 2) == [2, 3]
    table.until_in_sync(tensor, *NODES)


def test_a_range_that_the_catalogue_has_forgotten_is_read_again_after_a_scatter(cluster: Clustered) -> None:
    """As after a restore of etcd: the catalogue does not know that there were scatters, and the shards do."""
    table = Replicated.made(cluster, "forgotten", ROWS)
    (tensor,) = table.tensors
    table.scatter(tensor, [0], [[1, 1]], next(KEYS))
    table.until_in_sync(tensor, *NODES)
    for node in NODES:
        table.first_row(node, tensor, 1)
    cluster.client.transact(lambda _: Change({f"ranges/{tensor}": None}))
    for node in NODES:
        until(lambda: table.refusal(node, tensor) == "precondition_failed", f"{node} refuses")  # noqa: B023
    cluster.client.transact_all(lambda at: ranges.open_ranges(at, table.name, 1))
    assert table.scatter(tensor, [0], [[0, 0]], next(KEYS)).sequence == 2
    for node in table.record(tensor).in_sync:
        assert table.first_row(node, tensor, 2) == [1, 2]


@pytest.mark.slow
def test_a_shard_that_takes_over_has_all_that_was_acknowledged(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "dies", ROWS)
    (tensor,) = table.tensors
    for _ in range(5):
        table.scatter(tensor, [0], [[1, 1]], next(KEYS))
    table.scatter(tensor, [0], [[1, 1]], "before")
    old = table.record(tensor).primary
    kill(table, tensor, old)
    assert table.scatter(tensor, [0], [[1, 1]], "before").repeated
    assert table.scatter(tensor, [0], [[1, 1]], next(KEYS)).sequence == 7
    record = table.record(tensor)
    assert old not in record.in_sync
    for node in record.in_sync:
        assert table.first_row(node, tensor, 7) == [7, 8]
    # It comes back without its disk, joins by a copy, and takes over with the keys that it has copied.
    shutil.rmtree(cluster.folder / old / "store")
    cluster.begin(old)
    table.until_in_sync(tensor, *NODES)
    assert table.first_row(old, tensor, 7) == [7, 8]
    for node in NODES:
        if node != old:
            record = table.record(tensor)
            left = (old, *(one for one in record.in_sync if one not in (old, node)))
            led = RangeRecord(record.epoch + 1, old, left)
            cluster.client.transact(lambda at: Change({f"ranges/{tensor}": led}))  # noqa: B023
            break
    assert table.scatter(tensor, [0], [[1, 1]], "before").repeated
    table.until_in_sync(tensor, *NODES)
    assert table.scatter(tensor, [0], [[1, 1]], next(KEYS)).sequence == 8
    for node in NODES:
        assert table.first_row(node, tensor, 8) == [8, 9]
