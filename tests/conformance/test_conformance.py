"""The conformance table: one list of cases, asked by every transport, of one machine and of a router.

A cell is a case and a transport. What a transport cannot carry is in `GAPS`, with the refusal that it must get.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from app.api.route_rows.operation import Route
from app.api.route_rows.operators import OPERATOR_ROUTES
from app.errors import CODES
from app.operators.registry import ROWS
from tests.cluster.running import put
from tests.conformance import reference
from tests.conformance.answered import ANSWERED
from tests.conformance.cases import Case, Error, as_resident, into_resident, strings
from tests.conformance.gaps import gap_of
from tests.conformance.reference import check_said
from tests.conformance.refused import REFUSED
from tests.conformance.servers import asking
from tests.conformance.transports import TRANSPORTS, Json, Safetensors, Target, Transport
from tests.conftest import SOAK, TEST_ALL, slow_but_for
from tests.grpc_api.conftest import StartGrpc, start_grpc
from tests.http.conftest import KERNELS, start
from tests.http.tensors import RAW
from tests.parity.items import Array, same
from tests.parity.messages import unframed

__all__ = ["start", "start_grpc"]
pytestmark = pytest.mark.long

INLINE = [*ANSWERED, *REFUSED]
CASES = [*INLINE, *(made for each in INLINE if (made := as_resident(each)) is not None)]
IN_PLACE = [made for each in INLINE if (made := into_resident(each)) is not None]
CHANGING = [each for each in TRANSPORTS if isinstance(each, Json | Safetensors) and each.accept is None]
"""Transports that can ask for a change of a resident tensor."""
SHARE = 1 if SOAK else 12 if TEST_ALL else 75
"""One cell in so many is taken, others for each transport; a soak takes every one."""
FEWER = SHARE if SOAK else 3 * SHARE
"""NumPy's kernel and a router take one in so many."""
OF_NO_CASE = {
    "payload_too_large", "unsupported_media_type", "deadline_exceeded", "shard_unavailable", "tensor_damaged",
    "not_implemented", "no_keys", "key_not_found",
}  # fmt: skip
"""Errors of operators that depend on a state of the service, on how a request travels, or on keys (`tests/keys`)."""
PATHS: dict[str, Any] = {row.path: row for row in ROWS.values()}


class Machine(NamedTuple):
    """A service, and how many cells there are for each that it is asked."""

    target: Target
    share: int = SHARE


def chosen(cases: Iterable[Case], transport: Transport, share: int = SHARE) -> list[Case]:
    """The cells of a transport that this run takes."""
    return [each for each in cases if not zlib.crc32(f"{transport.name} {each.name}".encode()) % share]


def tables_of(cases: Iterable[Case]) -> Mapping[str, Array]:
    return {name: table for each in cases for name, table in each.tables.items()}


SOME = [each for transport in TRANSPORTS for each in chosen(CASES, transport)]


@pytest.fixture(scope="module", params=slow_but_for(("numba",), KERNELS))
def one_machine(request: pytest.FixtureRequest, start_grpc: StartGrpc) -> Iterator[Machine]:
    """A service with each CPU kernel in turn, which has every table."""
    with start_grpc("--kernel", request.param) as server, asking(server.http) as target:
        for name, table in tables_of(SOME).items():
            put(target.client, name, table)
        yield Machine(target, SHARE if request.param == "numba" else FEWER)


def failures(cases: Iterable[Case], check: Callable[[Case], None]) -> None:
    """Check every case; the first that fails is raised, with the names of the others."""
    failed: list[tuple[Case, Exception]] = []
    for each in cases:
        try:
            check(each)
        except Exception as error:  # noqa: BLE001
            failed.append((each, error))
    if failed:
        first = failed[0][1]
        first.add_note(f"{len(failed)} cases failed, this one first:")
        for each, _ in failed[:20]:
            first.add_note(f"  {each.name:.300}")
        raise first


@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda each: each.name)
def test_one_machine_answers_every_case(transport: Transport, one_machine: Machine) -> None:
    target, share = one_machine
    failures(chosen(CASES, transport, share), lambda case: check(transport, target, case))


@pytest.mark.parametrize("transport", CHANGING, ids=lambda each: each.name)
def test_a_resident_tensor_is_changed_as_scatternd_says(transport: Transport, one_machine: Machine) -> None:
    target = one_machine.target

    def changed(case: Case) -> None:
        before = case.arrays["data"].array
        assert case.resident is not None
        put(target.client, case.resident, before)
        gap = gap_of(transport, case)
        if gap is not None and gap.error is None:
            return
        answer = transport.send(target, case)
        after = before
        if gap is not None and gap.error is not None:
            check_refused(answer.problem, gap.error(transport, case), lambda flat: flat)
        elif case.error is not None:
            check_refused(answer.problem, case.error, lambda flat: transport.pointer(case, flat))
        else:
            assert answer.problem is None, answer.problem
            after = reference.changed(case)
        found = target.client.get(f"/tensors/{case.resident}/content", headers={"accept": RAW})
        assert same(unpacked(found, before), after)

    failures(chosen(IN_PLACE, transport), changed)


def unpacked(answer: httpx.Response, like: Array) -> Array:
    """The array of a download, whose shape and type stay."""
    if like.dtype == object:
        return strings(unframed(answer.content)).reshape(like.shape)
    return np.frombuffer(answer.content, like.dtype).reshape(like.shape)


@cache
def wanted(name: str) -> tuple[Mapping[str, Array], int | None]:
    """The outputs of a valid case and how many indices are replaced; those that a text gives are held to the loops."""
    case = BY_NAME[name]
    outputs, replaced = reference.answered(case)
    for output, array in (case.outputs or {}).items():
        assert same(outputs[output], array), (case.name, outputs[output], array)
    return outputs, replaced


BY_NAME = {each.name: each for each in CASES}


def check(transport: Transport, target: Target, case: Case) -> None:
    """Ask, and hold the answer to the case."""
    gap = gap_of(transport, case)
    if gap is not None and gap.error is None:
        return
    answer = transport.send(target, case)
    if gap is not None and gap.error is not None:
        check_refused(answer.problem, gap.error(transport, case), lambda flat: flat)
    elif case.error is not None:
        check_refused(answer.problem, case.error, lambda flat: transport.pointer(case, flat))
    else:
        assert answer.problem is None, answer.problem
        outputs, replaced = wanted(case.name)
        assert sorted(answer.arrays) == sorted(outputs)
        for name, array in outputs.items():
            assert same(answer.arrays[name], array), (name, answer.arrays[name], array)
        assert answer.said.get("replaced") == replaced
        check_said(case, answer.said)


def check_refused(problem: Any, error: Error, place: Callable[[str], str]) -> None:
    """The problem is the error, at the places where the transport has them."""
    assert problem is not None, f"answered, and not refused with {error.code}"
    if error.only_code:
        assert problem["code"] == error.code, problem["detail"]
        if error.places:
            assert problem["errors"][0]["pointer"] == place(error.places[0]["pointer"])
        return
    found = {
        "code": problem["code"],
        "places": problem.get("errors"),
        "total": problem.get("total"),
        "rule": (problem["rule"]["dialect"], problem["rule"]["clause"]) if "rule" in problem else None,
        "facts": {name: problem[name] for name in ("limit", "maximum") if name in problem},
    }
    places = [{**each, "pointer": place(each["pointer"])} for each in error.places or ()]
    assert found == {
        "code": error.code,
        "places": places or None,
        "total": error.total,
        "rule": error.rule,
        "facts": dict(error.facts),
    }, problem["detail"]


@pytest.mark.parametrize("path", PATHS)
def test_every_rule_of_every_dialect_is_broken_by_a_case(path: str) -> None:
    operator = PATHS[path]
    rules = {(dialect, code) for dialect, row in operator.dialects.items() for code in row.rules if code in CODES}
    rules |= {(dialect, "unsupported_dtype") for dialect in operator.dialects}
    if path.endswith("/backward"):
        rules |= {(dialect, code) for dialect in operator.dialects for code in operator.uncited}
        if path == "/gather/backward":  # what its gather fills with zeros gives nothing back
            rules.remove(("openvino-8", "index_out_of_bounds"))
    found = {
        (each.error.rule[0], each.error.code)
        for each in REFUSED
        if each.path == path and each.error is not None and each.error.rule is not None
    }
    assert rules <= found, rules - found


@pytest.mark.parametrize("route", OPERATOR_ROUTES, ids=lambda route: route.template)
def test_every_error_that_an_operator_names_is_that_of_a_case(route: Route) -> None:
    """And no case is refused with another, so that a caller can read in OpenAPI what may come."""
    named = {"invalid_field", *route.operations["POST"].codes} - OF_NO_CASE
    if "elements" in route.template or "scatter" in route.template:
        named.remove("output_too_large")  # the output is as large as what was sent
    found = {each.error.code for each in REFUSED if each.path == route.template and each.error is not None}
    assert found == named
