"""Shards that start without the rows of ranges that take scatters: nothing acknowledged is lost, and ranges go on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.cluster.catalogue.records import Options
from tests.cluster.clustered import Clustered, clustered
from tests.cluster.replicated import KEYS, Replicated, kill
from tests.cluster.shard_nodes import KEY
from tests.http.conftest import Start

ROWS = np.arange(40, dtype=np.int64).reshape(20, 2)
NODES = ("s0", "s1")


@pytest.fixture(scope="module")
def cluster(start: Start, warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    options = Options(ranges=1, replicas=2, key=KEY)
    folder = tmp_path_factory.mktemp("cluster")
    with clustered(start, warmed, folder, count=len(NODES), options=options) as made:
        yield made


@pytest.mark.slow
def test_a_new_primary_without_its_rows_gives_the_range_back_to_the_old_one(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "back", ROWS)
    (tensor,) = table.tensors
    table.scatter(tensor, [0], [[1, 1]], next(KEYS))
    table.until_in_sync(tensor, *NODES)
    old = table.record(tensor).primary
    new = next(node for node in NODES if node != old)
    cluster.kill(new)
    shutil.rmtree(cluster.folder / new / "store")
    kill(table, tensor, old)
    assert table.record(tensor).primary == new
    cluster.begin(new)
    table.until_in_sync(tensor, old)
    cluster.begin(old)
    assert table.scatter(tensor, [0], [[1, 1]], next(KEYS)).sequence == 2
    table.until_in_sync(tensor, *NODES)
    for node in NODES:
        assert table.first_row(node, tensor, 2) == [2, 3]
