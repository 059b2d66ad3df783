"""Random valid requests of every operator as cases of no format, and what each of them must be answered."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.conformance import reference
from tests.conformance.cases import Case, of_array
from tests.conformance.tables import TABLES
from tests.conformance.transports import Answer
from tests.parity import backward_cases, gather_cases, lookup_cases, scatter_cases
from tests.parity.items import Array, Rng, name_of, same
from tests.parity.lookup_cases import Lookup
from tests.parity.messages import Request

LOOKED_UP = lookup_cases.tables()
SHAPES = {name: (name_of(table), list(table.shape)) for name, table in backward_cases.tables().items()}
KINDS: Mapping[str, Callable[[Rng], Request]] = {
    "scatters": scatter_cases.random_scatter,
    "gathers": gather_cases.random_gather,
    "gradients": lambda rng: backward_cases.random_gradient(rng, SHAPES),
    "lookups": lambda rng: lookup_cases.random_lookup(rng, LOOKED_UP),
}


def case_of(request: Request) -> Case:
    """The request as a case."""
    arrays = {name: of_array(array) for name, array in request.arrays.items()}
    features = tuple(each.members() for each in request.features) if isinstance(request, Lookup) else None
    return Case("random", request.path, arrays, request.parameters, features)


def check(case: Case, answer: Answer) -> None:
    """The answer is what the loops give."""
    assert answer.problem is None, answer.problem
    outputs, replaced = reference.answered(case)
    assert sorted(answer.arrays) == sorted(outputs)
    for name, array in outputs.items():
        assert same(answer.arrays[name], array), (name, answer.arrays[name], array)
    assert answer.said.get("replaced") == replaced


def all_tables() -> Mapping[str, Array]:
    """The resident tensors that random requests name."""
    return {name: table for name, table in TABLES.items() if name.startswith(("pl_", "pg_"))}
