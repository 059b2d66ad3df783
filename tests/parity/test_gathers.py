"""Random gathers of every dialect, type, format and `out_of_bounds` against loops over elements, and their refusals."""

from __future__ import annotations

import httpx

from tests.parity.counts import share_of
from tests.parity.faults import Compared, check_refused
from tests.parity.gather_cases import faults_of, looped, mode_of, random_gather
from tests.parity.items import Rng, same
from tests.parity.messages import read, send


def test_gathers_are_as_the_loops_and_the_rules_say(every_format: httpx.Client, rng: Rng) -> None:
    compared = Compared()
    for number in range(share_of("gathers out of bounds")):
        request = random_gather(rng, spoiled=number % 3 == 0)
        sent, answer = send(every_format, rng, request)
        faults = faults_of(request)
        if faults:
            compared.refused(check_refused(sent, answer, faults))
            continue
        found = read(sent, answer)
        wanted, replaced = looped(request)
        assert list(found.arrays) == ["output"], request
        assert same(found.arrays["output"], wanted), (sent, found.arrays["output"], wanted)
        assert (found.dialect, found.device) == (request.parameters.get("dialect", "onnx-13"), "cpu")
        assert found.replaced == (None if mode_of(request) == "error" else replaced), sent
        compared.answered()
    assert compared.told("gathers out of bounds") == share_of("gathers out of bounds")
