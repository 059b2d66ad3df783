"""Random requests as cases of no format."""

from __future__ import annotations

from tests.conformance.cases import Case, of_array
from tests.parity.lookup_cases import Lookup
from tests.parity.messages import Request


def case_of(request: Request) -> Case:
    """The request as a case."""
    arrays = {name: of_array(array) for name, array in request.arrays.items()}
    features = tuple(each.members() for each in request.features) if isinstance(request, Lookup) else None
    return Case("random", request.path, arrays, request.parameters, features)
