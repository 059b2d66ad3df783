"""Random scatters of every type, dialect, reduction and format against loops over single items, and their refusals."""

from __future__ import annotations

import httpx

from tests.parity.counts import share_of
from tests.parity.faults import Compared, check_refused
from tests.parity.items import Rng, same
from tests.parity.messages import read, send
from tests.parity.scatter_cases import faults_of, looped, random_scatter


def test_scatters_are_as_the_loops_and_the_rules_say(every_format: httpx.Client, rng: Rng) -> None:
    compared = Compared()
    for number in range(share_of("scatters")):
        request = random_scatter(rng, spoiled=number % 3 == 0)
        sent, answer = send(every_format, rng, request)
        faults = faults_of(request)
        if faults:
            compared.refused(check_refused(sent, answer, faults))
            continue
        found = read(sent, answer)
        wanted = looped(request)
        assert list(found.arrays) == ["output"], request
        assert same(found.arrays["output"], wanted), (sent, found.arrays["output"], wanted)
        assert (found.dialect, found.device) == (request.parameters.get("dialect", "onnx-18"), "cpu")
        compared.answered()
    assert compared.told("scatters") == share_of("scatters")
