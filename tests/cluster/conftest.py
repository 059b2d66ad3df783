from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.cluster.clustered import clustered, routing
from tests.cluster.running import put
from tests.cluster.written import WrittenTransport, settled
from tests.http.conftest import Start, start
from tests.parity.lookup_cases import Tables, tables

__all__ = ["start"]

SCALAR = "pl_scalar"
"""A table that no operator reads: rank 0 has no rows."""


@pytest.fixture(scope="session")
def held() -> Tables:
    """Tables of every type, of rank 1 to 3, one without rows; beside them there is the scalar."""
    made = tables() | {
        "pl_wide": np.random.default_rng(1).standard_normal((37, 5000), np.float32),
        "pl_tall": np.random.default_rng(2).integers(0, 99, (5000, 40), np.int16),
        "pl_no_items": np.zeros((5, 0, 2), np.float64),
    }
    return {name: table for name, table in made.items() if name != SCALAR}


@pytest.fixture(scope="session")
def both(
    start: Start, warmed: Path, held: Tables, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WrittenTransport]:
    """A cluster, two routers and three shards with four ranges in two replicas, beside one machine with the tables."""
    folder = tmp_path_factory.mktemp("cluster")
    few = ("--max-features", "8")
    with start() as whole, clustered(start, warmed, folder, shard_flags=few) as running:
        for client in (whole.shared_client(), running.router.shared_client()):
            every = {**held, SCALAR: tables()[SCALAR]}
            with ThreadPoolExecutor(4) as threads:  # each waits for a disk
                list(threads.map(partial(put, client), every, every.values()))
            alias = client.put("/aliases/pl_alias", json={"tensor": "pl_float32_3@1"})
            assert alias.status_code == 201, alias.text
        with routing(start, running.database) as other:
            made = WrittenTransport((running.router, other), whole, lambda: settled(running))
            yield made
            made.close()


@pytest.fixture
def compared(both: WrittenTransport) -> httpx.Client:
    """A client whose requests go to both, whose answers have to be equal."""
    return httpx.Client(transport=both, base_url="http://both")
