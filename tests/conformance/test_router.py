"""The conformance table once more, asked of a router to three services: the answers are those of one machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.running import Placed, routing, shards
from tests.conformance.cases import Case, is_named
from tests.conformance.gaps import gap_of
from tests.conformance.servers import asking
from tests.conformance.test_conformance import CASES, FEWER, SOME, check, chosen, failures, tables_of
from tests.conformance.transports import QUANTIZED, TRANSPORTS, Json, Target, Transport
from tests.http.conftest import Start, start

__all__ = ["start"]


@pytest.fixture(scope="module")
def router(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """A router to three services, each of which has some row ranges of every table."""
    path = tmp_path_factory.mktemp("map") / "map.json"
    with ExitStack() as stack:
        placed = Placed(stack.enter_context(shards(start, 3)))
        for name, table in tables_of(SOME).items():
            placed.add(name, table, ranges=3, replicas=1)
        placed.write(path)
        yield stack.enter_context(asking(stack.enter_context(routing(start, path, "--grpc-port", "0"))))


def not_for_routers(case: Case) -> bool:
    """Whether a router would need whole tables. What is wrong but for the index values is told first."""
    in_bounds = case.error is None or case.error.code == "index_out_of_bounds"
    if case.path == QUANTIZED:
        return in_bounds and (case.resident is not None or any(map(is_named, case.parameters.values())))
    return case.path.startswith("/scatter") and case.resident is not None and in_bounds


def can_be_said(transport: Transport, case: Case) -> bool:
    """Whether a request of this form reaches the operator: what is wrong with an answer's form is told after that."""
    gap = gap_of(transport, case)
    other_answer = isinstance(transport, Json) and transport.accept is not None
    return gap is None or (gap.error is not None and other_answer)


@pytest.mark.slow
@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda each: each.name)
def test_a_router_answers_every_case_as_one_machine(transport: Transport, router: Target) -> None:
    def routed(case: Case) -> None:
        if not_for_routers(case) and can_be_said(transport, case):
            problem = transport.send(router, case).problem
            assert problem is not None
            assert problem["code"] == "not_implemented", problem
        else:
            check(transport, router, case)

    failures(chosen(CASES, transport, FEWER), routed)
