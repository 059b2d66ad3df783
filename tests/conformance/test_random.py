"""Random requests of every operator over every transport, against loops over single elements and the rules."""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cluster.running import put
from tests.conformance.gaps import gap_of
from tests.conformance.random_cases import KINDS, LOOKED_UP, all_tables, case_of, check
from tests.conformance.reference import check_said
from tests.conformance.servers import asking
from tests.conformance.transports import FLAT, TRANSPORTS, Answer, Grpc, Protocol, Target, Transport
from tests.conftest import samples, slow_but_for
from tests.grpc_api.conftest import StartGrpc, start_grpc
from tests.http.conftest import KERNELS, start
from tests.http.forms import FLOATS, TYPES
from tests.http.rules import DIALECTS
from tests.parity import backward_cases, gather_cases, lookup_cases, scatter_cases
from tests.parity.items import Rng
from tests.parity.lookup_cases import POOLINGS, Lookup
from tests.parity.messages import raw

__all__ = ["start", "start_grpc"]

COUNT = 130
"""Requests of a kind over one transport to one kernel, in `make test-all`."""
CELLS = [
    (transport, kind)
    for transport in TRANSPORTS
    for kind in KINDS
    if kind != "gradients" or not isinstance(transport, Protocol | Grpc)  # which have no gradients
]
RAW_ITEMS = next(each for each in TRANSPORTS if isinstance(each, Grpc) and not each.typed)
BINARY = next(each for each in TRANSPORTS if isinstance(each, Protocol) and each.binary)


@pytest.fixture(scope="module", params=slow_but_for(("numba",), KERNELS))
def one_machine(request: pytest.FixtureRequest, start_grpc: StartGrpc) -> Iterator[Target]:
    """A service with each CPU kernel in turn, which has the tables that random requests name."""
    with start_grpc("--kernel", request.param) as server, asking(server.http) as target:
        for name, table in all_tables().items():
            put(target.client, name, table)
        yield target


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> Rng:
    """Random numbers of a test's own: others for each kernel and cell, the same in each run."""
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))


@pytest.mark.parametrize(("transport", "kind"), CELLS, ids=lambda each: getattr(each, "name", each))
def test_requests_are_answered_as_the_loops_and_the_rules_say(
    transport: Transport, kind: str, one_machine: Target, rng: Rng
) -> None:
    told: Counter[str] = Counter()
    while told.total() < samples(COUNT):
        request, faults = KINDS[kind](rng, spoiled=told.total() % 3 == 0)
        case = case_of(request)
        if gap_of(transport, case) is not None or (transport != FLAT and (request.values or request.dtypes)):
            continue  # only flat JSON says every wrong type name, count and value
        answer = transport.send(one_machine, case)
        try:
            check(transport, case, answer, faults)
            if not faults:
                check_said(case, answer.said)
            if transport == RAW_ITEMS:
                check_same(answer, BINARY.send(one_machine, case))
        except Exception as error:
            error.add_note(f"{request}")
            raise
        told["answered" if answer.problem is None else answer.problem["code"]] += 1
    sys.stdout.write(f"{transport.name}, {kind}: {dict(sorted(told.items()))}\n")


def check_same(one: Answer, other: Answer) -> None:
    """The same bytes, or an error that says the same."""
    assert {name: raw(array) for name, array in one.arrays.items()} == {
        name: raw(array) for name, array in other.arrays.items()
    }
    members = ("code", "title", "detail", "errors", "total", "rule", "hint")
    assert [(one.problem or {}).get(name) for name in members] == [(other.problem or {}).get(name) for name in members]


SCATTERS = [(path, name, each) for path in ("/scatternd", "/scatter_elements")
            for name, taken in scatter_cases.REDUCTIONS.items() for each in taken]  # fmt: skip
EVERY = [transport.name for transport in TRANSPORTS]
OF_EVERY_KIND: dict[str, set[Any]] = {
    "scatters": {*scatter_cases.CODES, *EVERY, *SCATTERS, *product(("/scatternd", "/scatter_elements"), TYPES)},
    "gathers": {
        *gather_cases.CODES, *EVERY, *((*each, mode) for each in DIALECTS for mode in gather_cases.MODES),
        *product(("/gathernd", "/gather", "/gather_elements"), TYPES), *product(("rank",), range(1, 7)),
        ("empty", True), ("empty", False),
    },
    "gradients": {
        *backward_cases.CODES, *(transport.name for transport, kind in CELLS if kind == "gradients"),
        *((*each, sparse) for each in backward_cases.ROUTES for sparse in (False, True)),
        *product(("/gathernd/backward", "/gather/backward"), FLOATS),
    },
    "lookups": {
        *lookup_cases.CODES, *EVERY, *product(POOLINGS, FLOATS, (False,)), *product(("sum",), FLOATS, (True,)),
        *product(("none",), TYPES, (False,)), *gather_cases.MODES, ("concat", True), ("concat", False),
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_requests_are_of_every_kind(kind: str) -> None:
    """Each type, dialect, reduction, mode and transport, and each code; valid ones are more than half."""
    kinds_of: dict[str, Any] = {
        "scatters": scatter_cases.kinds_of, "gathers": gather_cases.kinds_of, "gradients": backward_cases.kinds_of,
    }  # fmt: skip
    rng, seen, valid = np.random.default_rng(7), set[Any](), 0
    for number in range(6000):
        request, faults = KINDS[kind](rng, spoiled=number % 3 == 0)
        if faults:
            seen.add(faults[0].code)
            continue
        valid += 1
        seen.update(
            lookup_cases.kinds_of(request, LOOKED_UP) if isinstance(request, Lookup) else kinds_of[kind](request)
        )
        if number % 10 == 1:
            case = case_of(request)
            seen.update(transport.name for transport in TRANSPORTS if gap_of(transport, case) is None)
    assert OF_EVERY_KIND[kind] <= seen, OF_EVERY_KIND[kind] - seen
    assert valid > 3000


def test_a_soak_compares_a_million_requests() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    assert "GATHERND_SOAK ?= 100\n" in makefile
    assert 100 * len(KERNELS) * COUNT * len(CELLS) >= 1_000_000
