"""Ranges that take scatters, on real shards: acknowledged is on every replica, once, whatever shards die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.cluster.catalogue.records import Options
from tests.cluster.clustered import Clustered, clustered
from tests.cluster.replicated import KEYS, Replicated
from tests.cluster.shard_nodes import KEY
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
        assert np.array_equal(table.rows(node, tensor, 1), expected.reshape(-1))


def test_a_repeated_key_is_answered_and_not_made_again(cluster: Clustered) -> None:
    table = Replicated.made(cluster, "keys", ROWS)
    (tensor,) = table.tensors
    first = table.scatter(tensor, [0], [[1, 1]], "once")
    again = table.scatter(tensor, [0], [[1, 1]], "once")
    assert (first.sequence, first.repeated, again.sequence, again.repeated) == (1, False, 1, True)
