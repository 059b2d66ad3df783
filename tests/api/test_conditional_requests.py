"""If-Match and If-None-Match: whatever a field says, the event loop is done with it soon."""

from __future__ import annotations

import pytest

from app.api.conditional_requests import read_conditions
from app.errors import GatherError
from tests.processor_time import LONGEST, units

BYTES = 60_000
"""Nearly as many as a header may have."""


@pytest.mark.parametrize(
    "field",
    [b"," * BYTES, b'"",' * (BYTES // 3), b'"a",' + b" " * BYTES + b"x", b'"a"' + b"\t" * BYTES + b"x", b", " * BYTES],
    ids=["commas", "empty tags", "spaces behind a comma", "tabs behind a tag", "commas and spaces"],
)
def test_no_field_takes_long(field: bytes) -> None:
    assert units(lambda: read_conditions({b"if-none-match": field})) < LONGEST / 20


def test_a_list_has_a_bound() -> None:
    tags = [f'"{number}"' for number in range(257)]
    read = read_conditions({b"if-match": ", ,".join(tags[:-1]).encode()})
    assert read.match == tuple(tags[:-1])
    with pytest.raises(GatherError) as raised:
        read_conditions({b"if-match": ",".join(tags).encode()})
    assert (raised.value.code, raised.value.places[0].pointer) == ("invalid_field", "/if-match")
