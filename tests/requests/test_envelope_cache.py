"""A request whose envelope came before is read as if it had not; only the lengths of arrays may differ meanwhile."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import pytest

from app.errors import GatherError
from app.formats.json.read_request import read_request
from app.requests.envelope_cache import EnvelopeCache, Validated, envelopes
from app.tensors.gather_call import Call, Encoding
from app.tensors.lookup_call import LOOKUP_SIGNATURE
from app.tensors.shape_limits import Limits
from tests.conftest import samples
from tests.for_each import for_each
from tests.wire.json_random import Requests
from tests.wire.json_requests import INDICES, SIGNATURES, outcome, read_call, request, tensor


@pytest.fixture(autouse=True)
def empty_cache() -> None:
    envelopes.clear()


def read_anew(*arguments: Any) -> tuple[Call, Encoding]:
    """Read a body with an empty cache."""
    envelopes.clear()
    return read_call(*arguments)


def resized(body: bytes, random: Random) -> bytes:
    """The body with other sizes in its shapes."""
    return re.sub(rb'("shape": ?\[)[0-9, ]*', lambda found: found[1] + b"%d" % random.randrange(4), body)


def test_random_requests_are_read_alike_with_and_without_the_cache() -> None:
    requests, random = Requests(77), Random(77)
    for _ in range(samples(1000)):
        body, operator = requests.body()
        other = resized(body, random)
        wanted = [outcome(read_anew, each, operator) for each in (body, other)]
        envelopes.clear()
        found = [outcome(read_call, each, operator) for each in (body, other, body, other)]
        assert found == wanted * 2, (body, other)


@for_each(
    "rest",
    [
        ', "out_of_bounds": "fill", "fill_value": {"shape": [1]}',
        ', "out_of_bounds": "fill", "fill_value": "x\\"shape"',
        ', "out_of_bounds": "fill", "fill_value": [{"shape": [2]}, 3]',
        ', "out_of_bounds": "fill", "fill_value": [[1], 1e999]',
    ],
)
@for_each("shape", ["[1.0]", "[1]", "[ 1 ]", "[1,1]"])
def test_a_shape_elsewhere_is_not_taken_for_that_of_an_array(rest: str, shape: str) -> None:
    bodies = [
        request(tensor("float32", "[5, 6]", given), INDICES, rest.replace("[1]", other))
        for given in (shape, shape.replace("1", "2"))
        for other in ("[1]", "[2]", "[7]")
    ]
    wanted = [outcome(read_anew, body, "gathernd") for body in bodies]
    envelopes.clear()
    for body in bodies:
        outcome(read_call, body, "gathernd")
    assert [outcome(read_call, body, "gathernd") for body in bodies] == wanted


def test_a_shape_that_is_no_json_is_refused_though_the_envelope_came_before() -> None:
    read_call(request(tensor("float32", "[1]", "[1]")), SIGNATURES["gathernd"], Limits())
    for shape in ("[01]", "[1,]", "[,1]", "[+1]", "[1 1]"):
        assert outcome(read_call, request(tensor("float32", "[1]", shape)), "gathernd")[0] == "malformed_request"


def test_the_cache_holds_no_more_bytes_than_it_may() -> None:
    cache = EnvelopeCache(100_000)
    for number in range(1000):
        cache.keep("row", b"%0100d" % number, Validated(None, {}, ()))
        assert 0 < len(cache) <= 100_000 // (48 * 100)
    cache.keep("row", bytes(1 << 15), Validated(None, {}, ()))
    assert ("row", bytes(1 << 15)) not in cache


def test_a_lookup_that_came_before_is_held_to_the_limit_of_features() -> None:
    feature = {"tensor": "a", "indices": {"dtype": "int64", "shape": [1], "values": [0]}}
    body = json.dumps({"features": [feature] * 3}).encode()
    read_request(body, b"", LOOKUP_SIGNATURE, Limits(features=3))
    with pytest.raises(GatherError, match="3 features; the limit is 2"):
        read_request(body, b"", LOOKUP_SIGNATURE, Limits(features=2))
