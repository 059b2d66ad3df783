"""Scatters of elements as torch computes them: equal bits on random valid requests of small integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gathernd import Client
from tests.conftest import samples
from tests.frameworks.conftest import Ask
from tests.frameworks.test_gathers import check, shape_of

pytestmark = pytest.mark.soak
TYPES = ("float32", "float64", "int32", "int64")


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "min", "max"])
def test_scatter_elements(reduction: Any, service: Client, ask: Ask) -> None:
    rng = np.random.default_rng(12)
    for _ in range(samples(20)):
        shape = shape_of(rng, int(rng.integers(1, 5)))
        axis = int(rng.integers(0, len(shape)))
        chosen = tuple(int(rng.integers(1, size + 1)) for size in shape)
        if reduction == "none":  # no place twice
            indices = np.argsort(rng.random(shape), axis=axis)[tuple(slice(size) for size in chosen)]
        else:
            indices = rng.integers(0, shape[axis], chosen)
        kind = rng.choice(TYPES)
        data, updates = (rng.integers(-3, 4, each).astype(kind) for each in (shape, chosen))
        found = service.scatter_elements(data, indices, updates, axis, reduction=reduction)
        check(found, ask("torch_scatter_elements", data, indices, updates, axis, reduction), (shape, chosen, axis))
