"""Ranges that take scatters on shards of several processes, and on shards that etcd does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from app.cluster.catalogue.records import Options
from tests.cluster.clustered import Clustered, clustered
from tests.cluster.replicated import KEYS, Replicated, stopped
from tests.cluster.running import put
from tests.cluster.shard_nodes import KEY
from tests.cluster.waiting import until
from tests.http.conftest import Start
from tests.http.server import TWO_WORKERS

ROWS = np.arange(40, dtype=np.int64).reshape(20, 2)
NODES = ("s0", "s1")


@pytest.fixture(scope="module")
def cluster(start: Start, warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    options = Options(ranges=2, replicas=2, key=KEY)
    folder = tmp_path_factory.mktemp("workers")
    with clustered(start, warmed, folder, 2, options, shard_flags=TWO_WORKERS) as made:
        yield made


@pytest.mark.slow
def test_all_processes_of_a_shard_take_the_scatters_of_its_ranges(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "workers", ROWS)
    first, second = table.tensors
    keys = [next(KEYS) for _ in range(60)]

    def send(key: str) -> None:
        for tensor in (first, second):
            answer = table.send(primaries[tensor], tensor, [0], [[1, 1]], key)
            if answer.status_code != 200:
                table.scatter(tensor, [0], [[1, 1]], key)

    primaries = {tensor: table.record(tensor).primary for tensor in (first, second)}
    for node in NODES:
        cluster.shards[node].shared_client()  # before several threads ask for it
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send, [*keys, *keys]))
        with stopped(cluster, NODES[1]):
            pool.submit(lambda: None).result()
        list(pool.map(send, keys))
    for tensor, begin in ((first, [60, 61]), (second, [80, 81])):
        table.until_in_sync(tensor, *NODES)
        for node in NODES:
            assert table.first_row(node, tensor, 60) == begin


@pytest.mark.slow
def test_without_etcd_only_tables_that_nobody_scatters_to_are_served(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "lease", ROWS)
    tensor = table.tensors[0]
    table.scatter(tensor, [0], [[1, 1]], next(KEYS))
    put(cluster.router.shared_client(), "still", ROWS)
    still = Replicated(cluster, "still")
    node, other = still.cluster.segments("still")[0].nodes[0], still.tensors[0]
    assert not isinstance(table.rows(node, tensor), str)
    cluster.database.stop()
    try:
        until(lambda: isinstance(table.rows(node, tensor), str), "the read lease ends")
        assert table.refusal(node, tensor) == "precondition_failed"
        assert not isinstance(still.rows(node, other), str)
    finally:
        cluster.database.begin()
    until(lambda: not isinstance(table.rows(node, tensor), str), "it serves again")
