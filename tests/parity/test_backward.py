"""Random gradients, dense and sparse, against loops that add one element after the other, and their refusals."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.parity.backward_cases import (
    Tables,
    faults_of,
    looped,
    random_gradient,
    tables,
)
from tests.parity.counts import share_of
from tests.parity.faults import Compared, check_refused
from tests.parity.items import Rng, name_of, same
from tests.parity.messages import read, resident, send


@pytest.fixture(scope="module")
def held(every_format: httpx.Client) -> Iterator[Tables]:
    made = tables()
    with resident(every_format, made):
        yield {name: (name_of(table), list(table.shape)) for name, table in made.items()}


def test_gradients_are_as_the_loops_and_the_rules_say(every_format: httpx.Client, held: Tables, rng: Rng) -> None:
    compared = Compared()
    for number in range(share_of("gradients")):
        request = random_gradient(rng, held, spoiled=number % 3 == 0)
        sent, answer = send(every_format, rng, request)
        faults = faults_of(request, held)
        if faults:
            compared.refused(check_refused(sent, answer, faults))
            continue
        found, wanted = read(sent, answer), looped(request, held)
        assert sorted(found.arrays) == sorted(wanted), request
        for name, array in wanted.items():
            assert same(found.arrays[name], array), (sent, name, found.arrays[name], array)
        assert (found.dialect, found.device) == (request.parameters.get("dialect", "onnx-13"), "cpu")
        compared.answered()
    assert compared.told("gradients") == share_of("gradients")
