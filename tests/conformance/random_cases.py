"""Random requests of every operator as cases of no format, valid and not, and what each of them must be answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.conformance import reference
from tests.conformance.cases import Case, Told
from tests.conformance.tables import TABLES
from tests.conformance.transports import Answer, Transport
from tests.parity import backward_cases, gather_cases, lookup_cases, scatter_cases
from tests.parity.faults import Fault
from tests.parity.items import Array, Rng, name_of, same
from tests.parity.lookup_cases import Lookup
from tests.parity.messages import Request, values

LOOKED_UP = lookup_cases.tables()
SHAPES = {name: (name_of(table), list(table.shape)) for name, table in backward_cases.tables().items()}
Asked = tuple[Request, list[Fault]]


def scatters(rng: Rng, *, spoiled: bool) -> Asked:
    made = scatter_cases.random_scatter(rng, spoiled=spoiled)
    return made, scatter_cases.faults_of(made)


def gathers(rng: Rng, *, spoiled: bool) -> Asked:
    made = gather_cases.random_gather(rng, spoiled=spoiled)
    return made, gather_cases.faults_of(made)


def gradients(rng: Rng, *, spoiled: bool) -> Asked:
    made = backward_cases.random_gradient(rng, SHAPES, spoiled=spoiled)
    return made, backward_cases.faults_of(made, SHAPES)


def lookups(rng: Rng, *, spoiled: bool) -> Asked:
    made = lookup_cases.random_lookup(rng, LOOKED_UP, spoiled=spoiled)
    return made, lookup_cases.faults_of(made, LOOKED_UP)


KINDS: Mapping[str, Callable[..., Asked]] = {
    "scatters": scatters, "gathers": gathers, "gradients": gradients, "lookups": lookups,
}  # fmt: skip


def case_of(request: Request) -> Case:
    """The request as a case; arrays whose type name or values are spoiled have their values listed."""
    arrays = {name: _told(request, name, array) for name, array in request.arrays.items()}
    features = tuple(each.members() for each in request.features) if isinstance(request, Lookup) else None
    return Case("random", request.path, arrays, request.parameters, features)


def _told(request: Request, name: str, array: Array) -> Told:
    listed = request.values.get(name, values(array) if name in request.dtypes else None)
    return Told(request.dtype(name), array.shape, array, listed)


def check(transport: Transport, case: Case, answer: Answer, faults: list[Fault]) -> None:
    """The answer is what the loops give, or tells one of `faults` at its place."""
    if faults:
        _check_refused(transport, case, answer, faults)
        return
    assert answer.problem is None, answer.problem
    outputs, replaced = reference.answered(case)
    assert sorted(answer.arrays) == sorted(outputs)
    for name, array in outputs.items():
        assert same(answer.arrays[name], array), (name, answer.arrays[name], array)
    assert answer.said.get("replaced") == replaced


def _check_refused(transport: Transport, case: Case, answer: Answer, faults: list[Fault]) -> None:
    problem: Any = answer.problem
    assert problem is not None, f"answered, and not refused with {faults}"
    told = (problem["code"], problem["errors"][0]["pointer"])
    wanted = {(fault.code, transport.pointer(case, _pointer(case, fault, fault.item))): fault for fault in faults}
    assert told in wanted, (told, sorted(wanted), problem)
    fault = wanted[told]
    if not fault.bad:
        return
    shape = case.arrays[fault.name].shape
    assert problem["total"] == len(fault.bad), problem
    assert problem["errors"] == [
        {
            "pointer": transport.pointer(case, _pointer(case, fault, bad.item)),
            "position": [int(at) for at in np.unravel_index(bad.item, shape)],
            "value": bad.value,
            "axis": bad.axis,
            "size": bad.size,
            "allowed": bad.allowed,
        }
        for bad in fault.bad[:10]
    ], problem


def _pointer(case: Case, fault: Fault, item: int) -> str:
    """The place of a fault in flat JSON."""
    if fault.what == "parameter":
        return f"/{fault.name}"
    if fault.what == "feature":
        return f"/features/{fault.name}"
    start = f"/{fault.name}" if case.features is None else f"/features/{fault.name.replace('.', '/')}"
    return {"array": start, "item": f"{start}/values/{item}"}.get(fault.what, f"{start}/{fault.what}")


def all_tables() -> Mapping[str, Array]:
    """The resident tensors that random requests name."""
    return {name: table for name, table in TABLES.items() if name.startswith(("pl_", "pg_"))}
