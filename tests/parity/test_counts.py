"""The random requests are of every kind, and in a soak a million of them are compared."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.http.forms import FLOATS, TYPES
from tests.http.rules import DIALECTS
from tests.parity import backward_cases, counts, gather_cases, lookup_cases, scatter_cases
from tests.parity.items import Rng, name_of
from tests.parity.lookup_cases import POOLINGS, Lookup
from tests.parity.messages import FORMATS, JSON, Request, formats_of

GRADIENTS = {name: (name_of(table), list(table.shape)) for name, table in backward_cases.tables().items()}
LOOKED_UP = lookup_cases.tables()
SCATTERS = [(path, name, each) for path in ("/scatternd", "/scatter_elements")
            for name, taken in scatter_cases.REDUCTIONS.items() for each in taken]  # fmt: skip


def scatters(rng: Rng, spoiled: bool) -> tuple[Request, list[Any], list[Any]]:
    made = scatter_cases.random_scatter(rng, spoiled=spoiled)
    return made, scatter_cases.faults_of(made), scatter_cases.kinds_of(made)


def gathers(rng: Rng, spoiled: bool) -> tuple[Request, list[Any], list[Any]]:
    made = gather_cases.random_gather(rng, spoiled=spoiled)
    return made, gather_cases.faults_of(made), gather_cases.kinds_of(made)


def gradients(rng: Rng, spoiled: bool) -> tuple[Request, list[Any], list[Any]]:
    made = backward_cases.random_gradient(rng, GRADIENTS, spoiled=spoiled)
    return made, backward_cases.faults_of(made, GRADIENTS), backward_cases.kinds_of(made)


def lookups(rng: Rng, spoiled: bool) -> tuple[Lookup, list[Any], list[Any]]:
    made = lookup_cases.random_lookup(rng, LOOKED_UP, spoiled=spoiled)
    faults = lookup_cases.faults_of(made, LOOKED_UP)
    return made, faults, [] if faults else lookup_cases.kinds_of(made, LOOKED_UP)


OF_EVERY_KIND: list[tuple[Callable[[Rng, bool], tuple[Request, list[Any], list[Any]]], set[Any]]] = [
    (
        scatters,
        {*scatter_cases.CODES, *FORMATS, *SCATTERS, *product(("/scatternd", "/scatter_elements"), TYPES)},
    ),
    (
        gathers,
        {*gather_cases.CODES, *FORMATS, *((*each, mode) for each in DIALECTS for mode in gather_cases.MODES),
         *product(("/gathernd", "/gather", "/gather_elements"), TYPES)},
    ),
    (
        gradients,
        {*backward_cases.CODES, *JSON, "safetensors", *((*each, sparse) for each in backward_cases.ROUTES
         for sparse in (False, True)), *product(("/gathernd/backward", "/gather/backward"), FLOATS)},
    ),
    (
        lookups,
        {*lookup_cases.CODES, *FORMATS, *product(POOLINGS, FLOATS, (False,)), *product(("sum",), FLOATS, (True,)),
         *product(("none",), TYPES, (False,)), *gather_cases.MODES, ("concat", True), ("concat", False)},
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("make", "kinds"), OF_EVERY_KIND, ids=lambda each: getattr(each, "__name__", ""))
def test_the_requests_are_of_every_kind(
    make: Callable[..., tuple[Request, list[Any], list[Any]]], kinds: set[Any]
) -> None:
    """Each type, dialect, reduction, mode and format, and each code; valid ones are more than half."""
    rng, seen, valid = np.random.default_rng(7), set[Any](), 0
    for number in range(6000):
        request, faults, found = make(rng, number % 3 == 0)
        if faults:
            seen.add(faults[0].code)
            continue
        valid += 1
        seen.update(found)
        seen.update(formats_of(request))
    assert kinds <= seen, kinds - seen
    assert valid > 3000


def test_a_soak_compares_a_million_requests() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert f"GATHERND_SOAK ?= {counts.FULL}\n" in makefile
    assert counts.in_full_soak() >= 1_000_000
