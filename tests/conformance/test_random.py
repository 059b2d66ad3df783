"""Random requests of every operator over every transport, against loops over single elements."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
import pytest

from tests.cluster.running import put
from tests.conformance.gaps import gap_of
from tests.conformance.random_cases import KINDS, all_tables, case_of, check
from tests.conformance.reference import check_said
from tests.conformance.servers import asking
from tests.conformance.transports import TRANSPORTS, Answer, Grpc, Protocol, Target, Transport
from tests.conftest import SOAK, samples, slow_but_for
from tests.grpc_api.conftest import StartGrpc, start_grpc
from tests.http.conftest import KERNELS, start
from tests.parity.items import Rng
from tests.parity.messages import raw

__all__ = ["start", "start_grpc"]

COUNT = 130 if SOAK else 64
"""Requests of a kind over one transport to one kernel, of which a run takes its part (`samples`)."""
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
def test_requests_are_answered_as_the_loops_say(transport: Transport, kind: str, one_machine: Target, rng: Rng) -> None:
    asked = 0
    while asked < samples(COUNT):
        request = KINDS[kind](rng)
        case = case_of(request)
        if gap_of(transport, case) is not None:
            continue
        asked += 1
        answer = transport.send(one_machine, case)
        try:
            check(case, answer)
            check_said(case, answer.said)
            if transport == RAW_ITEMS:
                check_same(answer, BINARY.send(one_machine, case))
        except Exception as error:
            error.add_note(f"{request}")
            raise


def check_same(one: Answer, other: Answer) -> None:
    """The same bytes."""
    assert {name: raw(array) for name, array in one.arrays.items()} == {
        name: raw(array) for name, array in other.arrays.items()
    }
