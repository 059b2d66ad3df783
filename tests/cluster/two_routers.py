"""A cluster whose tables have four ranges with two replicas each, and two routers in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from app.cluster.catalogue.records import Options
from tests.cluster.clustered import Clustered, clustered, routing
from tests.cluster.shard_nodes import KEY
from tests.http.conftest import Start
from tests.http.server import Server


@pytest.fixture(scope="module")
def cluster(start: Start, warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clustered]:
    options = Options(ranges=4, replicas=2, key=KEY)
    with clustered(start, warmed, tmp_path_factory.mktemp("cluster"), options=options) as running:
        yield running


@pytest.fixture(scope="module")
def other(start: Start, cluster: Clustered) -> Iterator[Server]:
    """Another router."""
    with routing(start, cluster.database) as running:
        yield running


@pytest.fixture
def client(cluster: Clustered) -> Iterator[httpx.Client]:
    with cluster.router.client() as found:
        yield found
