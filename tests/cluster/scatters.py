"""Random scatters into resident tensors, with indices out of bounds or without."""

from __future__ import annotations

from typing import Any

import httpx
import numpy as np

from tests.conformance.cases import Case, of_array
from tests.conformance.gaps import gap_of
from tests.conformance.transports import TRANSPORTS, Json, Safetensors, Target
from tests.http.forms import COMPLEX
from tests.parity.items import Array, Rng, choose, indices_around, items, name_of
from tests.parity.lookup_cases import Tables

REDUCTIONS = ("none", "add", "mul", "min", "max")
ONLY_REPLACED = ("bool", *COMPLEX)
"""Types that no reduction takes."""
HTTP = [each for each in TRANSPORTS if isinstance(each, Json | Safetensors) and each.accept is None]
SMALL = 10**4
"""Items of tables that are replaced whole by one scatter."""


def random_scatter(rng: Rng, held: Tables, *, is_wrong: bool) -> Case:
    """A scatter into a table. If `is_wrong`, indices may be out of bounds and the table may not exist."""
    parameters: dict[str, Any] = {}
    reduction = choose(rng, REDUCTIONS)
    if reduction != "none" or rng.random() < 0.3:
        parameters["reduction"] = reduction
    kept = [
        name
        for name, table in held.items()
        if name_of(table) != "string"  # a cluster refuses these
        and table.size
        and (reduction == "none" or name_of(table) not in ONLY_REPLACED)
    ]
    name = choose(rng, kept)
    table = held[name]
    least = 0 if table.size <= SMALL and rng.random() < 0.05 else 1
    depth = int(rng.integers(min(least, table.ndim), table.ndim + 1))
    few = 0 if rng.random() < 0.1 else 1
    lead = [int(size) for size in rng.integers(few, 5, rng.integers(0, 3))]
    if table.size > SMALL and rng.random() < 0.3:
        lead = [int(rng.integers(50, 400))]
    shape = [*lead, *table.shape[depth:]]
    indices = _indices(rng, table, [*lead, depth], choose(rng, (0, 0.1, 0.6)) if is_wrong else 0)
    arrays = {"indices": of_array(indices), "updates": of_array(items(rng, name_of(table), shape))}
    if table.dtype == np.float32 and name == "pl_float32_3" and rng.random() < 0.5:
        name = "pl_alias"
    elif rng.random() < 0.1:
        name = choose(rng, (f"{name}@1", f"{name}@2" if is_wrong else name, "pl_missing" if is_wrong else name))
    return Case("random", f"/tensors/{name}/scatter", arrays, parameters, resident=name)


def _indices(rng: Rng, table: Array, shape: list[int], bad: float) -> Array:
    depth = shape[-1] if shape else 1
    sizes = np.array([*table.shape, *[1] * depth][:depth], np.int64)
    return indices_around(
        rng, "int64", np.array(np.broadcast_to(sizes, shape)) if shape else sizes, wraps=True, bad=bad
    )


def send(client: httpx.Client, rng: Rng, case: Case) -> None:
    """Ask in one of the forms of HTTP that have a way to say the case, chosen at random."""
    said = [each for each in HTTP if (gap := gap_of(each, case)) is None or gap.error is not None]
    choose(rng, said).send(Target(client, None), case)
