"""Removals of rows by key: the rows that move are charged to the memory budget."""

from __future__ import annotations

import numpy as np
from safetensors.numpy import save

from tests.http.conftest import Start

MIB = 1 << 20
ROWS = 64
BINARY = {"content-type": "application/x-safetensors"}


def test_a_removal_that_moves_more_than_the_memory_budget_is_refused(start: Start) -> None:
    with start("--memory-budget", str(32 * MIB)) as server, server.client() as client:
        rows = np.zeros((ROWS, MIB), np.uint8)
        table = save({"keys": np.arange(ROWS), "data": rows})
        assert client.put("/tensors/wide", content=table, headers=BINARY).is_success
        few = client.post("/tensors/wide/remove", content=save({"keys": np.arange(2)}), headers=BINARY)
        assert (few.status_code, few.json()["rows"]) == (200, 62), few.text
        many = client.post("/tensors/wide/remove", content=save({"keys": np.arange(2, 18)}), headers=BINARY)
        assert (many.status_code, many.json()["code"]) == (413, "payload_too_large")
        assert client.get("/tensors/wide").json()["shape"] == [62, MIB]
