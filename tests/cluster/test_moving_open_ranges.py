"""Ranges that take scatters move among real shards while they do: each acknowledged scatter stays, once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest

from app.cluster.catalogue import transitions
from app.cluster.catalogue.records import Options, Segment
from tests.cluster.clustered import Clustered, clustered
from tests.cluster.replicated import KEYS, Replicated
from tests.cluster.shard_nodes import KEY
from tests.cluster.waiting import until
from tests.http.conftest import Start

pytestmark = pytest.mark.slow
ROWS = np.zeros((20, 2), np.int64)


@pytest.fixture(scope="module")
def cluster(start: Start, warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    options = Options(ranges=1, replicas=2, key=KEY)
    with clustered(start, warmed, tmp_path_factory.mktemp("cluster"), 4, options) as made:
        yield made


@contextmanager
def scattered_all_the_time(table: Replicated, tensor: str) -> Iterator[list[int]]:
    """Ones are added to row 0; the list has the sequence of each that was acknowledged."""
    over, acknowledged, problems = Event(), list[int](), list[BaseException]()

    def add() -> None:
        try:
            while not over.is_set():
                acknowledged.append(table.scatter(tensor, [0], [[1, 1]], next(KEYS)).sequence)
        except BaseException as problem:  # noqa: BLE001  (it is raised below)
            problems.append(problem)

    thread = Thread(target=add)
    thread.start()
    try:
        yield acknowledged
    finally:
        over.set()
        thread.join()
    if problems:
        raise problems[0]


def segment(table: Replicated) -> Segment:
    (found,) = table.cluster.segments(table.name)
    return found


def is_settled(table: Replicated, tensor: str, *without: str) -> bool:
    """Whether two shards have the range in sync, none of them in `without`, and no other shard has anything of it."""
    nodes = set(segment(table).nodes)
    holders = {node for node, held in table.cluster.stored() if held == tensor}
    return nodes == set(table.record(tensor).in_sync) == holders and len(nodes) == 2 and not nodes & set(without)


def check(table: Replicated, tensor: str, acknowledged: list[int]) -> None:
    """Whether each shard in sync has all that was acknowledged, once."""
    count = len(acknowledged)
    assert acknowledged == list(range(1, count + 1))
    for node in table.record(tensor).in_sync:
        assert table.first_row(node, tensor, count) == [count, count]


def test_a_drained_primary_hands_its_range_over_and_replicas_are_added_and_taken_away(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "moves", ROWS)
    (tensor,) = table.tensors
    with scattered_all_the_time(table, tensor) as acknowledged:
        until(lambda: acknowledged, "a scatter is acknowledged")
        first = table.record(tensor).primary
        cluster.drain(first)
        until(lambda: is_settled(table, tensor, first), "two others are in sync")
        cluster.client.transact(lambda at: transitions.undrain(at, first))
        cluster.client.transact(lambda at: transitions.set_replicas(at, "moves", 3))
        until(lambda: len(table.record(tensor).in_sync) == 3, "three are in sync")
        cluster.client.transact(lambda at: transitions.set_replicas(at, "moves", 2))
        until(lambda: is_settled(table, tensor), "two are in sync")
        before = len(acknowledged)
        until(lambda: len(acknowledged) > before, "scatters go on")
    check(table, tensor, acknowledged)


def test_the_ranges_of_a_version_that_is_removed_are_closed_and_dropped(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "gone", ROWS)
    (tensor,) = table.tensors
    table.scatter(tensor, [0], [[1, 1]], next(KEYS))
    cluster.client.transact(lambda at: transitions.remove_versions(at, "gone"))
    until(lambda: tensor not in cluster.catalogue.ranges, "the record is removed")
    until(lambda: all(held != tensor for _, held in cluster.stored()), "the rows are dropped")
