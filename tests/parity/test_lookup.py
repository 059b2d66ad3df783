"""Random lookups of several tables against loops over single elements, pooled in index order, and their refusals."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.parity.counts import share_of
from tests.parity.faults import Compared, check_refused
from tests.parity.items import Rng, same
from tests.parity.lookup_cases import Tables, faults_of, looped, random_lookup, tables
from tests.parity.lookup_messages import read, send
from tests.parity.messages import resident


@pytest.fixture(scope="module")
def held(every_format: httpx.Client) -> Iterator[Tables]:
    made = tables()
    with resident(every_format, made):
        yield made


def test_lookups_are_as_the_loops_and_the_rules_say(every_format: httpx.Client, held: Tables, rng: Rng) -> None:
    compared = Compared()
    for number in range(share_of("lookups")):
        lookup = random_lookup(rng, held, spoiled=number % 3 == 0)
        sent, answer = send(every_format, rng, lookup, held)
        faults = faults_of(lookup, held)
        if faults:
            compared.refused(check_refused(sent, answer, faults))
            continue
        arrays, named, replaced = read(sent, answer)
        wanted, count = looped(lookup, held)
        assert sorted(arrays) == sorted(wanted), lookup
        for name, array in wanted.items():
            assert same(arrays[name], array), (sent, name, arrays[name], array)
        assert named == [feature.tensor for feature in lookup.features]
        assert replaced == (None if lookup.parameters.get("out_of_bounds", "error") == "error" else count), sent
        compared.answered()
    assert compared.told("lookups") == share_of("lookups")
