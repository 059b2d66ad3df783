"""Shards that start without the rows of ranges that take scatters: nothing acknowledged is lost, and ranges go on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from app.cluster.catalogue import ranges
from app.cluster.catalogue.records import Options
from tests.cluster.clustered import Clustered, clustered
from tests.cluster.replicated import KEYS, Replicated, kill
from tests.cluster.running import put
from tests.cluster.shard_nodes import KEY
from tests.cluster.waiting import until
from tests.http.conftest import Start

ROWS = np.arange(40, dtype=np.int64).reshape(20, 2)
NODES = ("s0", "s1")
LOOKS_S = 4.0
"""Some looks of a shard at its ranges, and a round of the reconciler."""


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


@pytest.mark.slow
def test_a_range_that_no_shard_has_rows_of_rests_until_one_is_started_with_them(cluster: Clustered) -> None:
    put(cluster.router.shared_client(), "rests", ROWS)
    table = Replicated(cluster, "rests")
    (tensor,) = table.tensors
    for node in NODES:
        cluster.kill(node)
        (cluster.folder / node / "store").rename(cluster.folder / node / "kept")
    for node in NODES:
        cluster.begin(node)
    cluster.client.transact_all(lambda at: ranges.open_ranges(at, table.name, 1))
    until(lambda: len(table.record(tensor).in_sync) == 1, "all but one have said that they have no rows")
    assert writes_of(cluster, tensor, LOOKS_S) == 0
    (last,) = table.record(tensor).in_sync
    back = next(node for node in NODES if node != last)
    cluster.kill(back)
    shutil.rmtree(cluster.folder / back / "store")
    (cluster.folder / back / "kept").rename(cluster.folder / back / "store")
    cluster.begin(back)
    until(lambda: table.record(tensor).primary == back, f"{back} is the primary")
    assert table.scatter(tensor, [0], [[1, 1]], next(KEYS)).sequence == 1
    table.until_in_sync(tensor, *NODES)
    for node in NODES:
        assert table.first_row(node, tensor, 1) == [1, 2]


def writes_of(cluster: Clustered, tensor: str, seconds: float) -> int:
    """How often another record of a range is seen within some seconds."""
    seen, end = set(), monotonic() + seconds
    while monotonic() < end:
        seen.add(cluster.catalogue.revisions[f"ranges/{tensor}"])
        sleep(0.1)
    return len(seen) - 1
