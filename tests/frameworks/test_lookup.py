"""Pooled bags as torch's embedding_bag computes them, within 1e-5 relative to the sum of the absolute values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gathernd import Client, Feature
from tests.conftest import samples
from tests.frameworks.conftest import Ask

pytestmark = pytest.mark.soak


@pytest.mark.parametrize("pooling", ["sum", "mean", "max", "weighted"])
def test_bags(pooling: str, service: Client, ask: Ask) -> None:
    rng = np.random.default_rng(13)
    for turn in range(samples(10)):
        if turn % 50 == 0:
            kind = rng.choice(["float32", "float64"])
            table = (rng.standard_normal((40, int(rng.integers(1, 20)))) * 2.0 ** rng.integers(-6, 6)).astype(kind)
            service.put("bags", table)
        indices = rng.integers(0, 40, int(rng.integers(0, 30)))
        lengths = rng.integers(0, len(indices) + 1, int(rng.integers(0, 6)))
        offsets = np.concatenate([[0], np.sort(lengths)])
        weights = rng.standard_normal(len(indices)).astype(table.dtype) if pooling == "weighted" else None
        asked: Any = "sum" if pooling == "weighted" else pooling
        found = service.lookup([Feature("bags", indices, offsets=offsets, weights=weights, pooling=asked)])
        wanted = ask("torch_embedding_bag", table, indices, offsets, asked, weights)
        assert not isinstance(wanted, str), wanted
        total = ask(
            "torch_embedding_bag", abs(table), indices, offsets, asked, None if weights is None else abs(weights)
        )
        assert found.shape == wanted.shape
        assert (abs(found - wanted) <= 1e-5 * total).all(), (indices, offsets)
    service.delete("bags")
