from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from tests.cluster.running import BothTransport, Placed, put, routing, shards
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
def both(start: Start, held: Tables, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BothTransport]:
    """A cluster, three shards with four ranges in two replicas, beside one machine that has the whole tables."""
    path = tmp_path_factory.mktemp("map") / "map.json"
    with start() as whole, shards(start, 3) as running:
        placed = Placed(running)
        every = {**held, SCALAR: tables()[SCALAR]}

        def add(name: str) -> None:
            put(whole.shared_client(), name, every[name])
            placed.add(name, every[name])

        with ThreadPoolExecutor(4) as threads:  # each waits for a disk
            list(threads.map(add, every))
        placed.aliases["pl_alias"] = "pl_float32_3@1"
        alias = whole.shared_client().put("/aliases/pl_alias", json={"tensor": "pl_float32_3@1"})
        assert alias.status_code == 201, alias.text
        placed.write(path)
        with routing(start, path) as router:
            made = BothTransport(router, whole)
            yield made
            made.close()


@pytest.fixture
def compared(both: BothTransport) -> httpx.Client:
    """A client whose requests go to both, whose answers have to be equal."""
    return httpx.Client(transport=both, base_url="http://both")
