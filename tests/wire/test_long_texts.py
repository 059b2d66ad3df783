"""Errors in JSON texts above and below 1 MiB: above they say at which byte the text is wrong, and all else is alike."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.errors import LONG_TEXT, GatherError
from app.formats.oip.infer_document import Model
from app.formats.oip.read_body import read_body
from app.json_text import envelope
from app.operators.registry import OPERATORS
from app.tensors.shape_limits import Limits
from tests.for_each import for_each
from tests.wire.json_requests import call, request

SPACE = b" " * LONG_TEXT
MODEL = Model("gathernd", OPERATORS["gathernd"].signature)
NATIVE = {
    "a value": (b'{"data":{"dtype":"int8","values":[1,2,~300]},"indices":{"dtype":"int64","values":[[0]]}}', "vnr"),
    "a nested value": (
        b'{"data":{"dtype":"int8","values":[[1,~"x"]]},"indices":{"dtype":"int64","values":[[0]]}}',
        "vnr",
    ),
    "what follows the object": (b'{"data":{"dtype":"int8","values":[1]}} ~x', "mr"),
}
PROTOCOL = {
    "a value": (b'{"inputs":[{"name":"data","datatype":"INT8","shape":[3],"data":[1,2,~300]},@', "vnr"),
    "a comma too many": (b'{"inputs":[{"name":"data","datatype":"INT8","shape":[3],"data":[1,2,~]},@', "mr"),
}
CODES = {"vnr": "value_not_representable", "ecm": "element_count_mismatch", "mr": "malformed_request"}
INDICES = b'{"name":"indices","datatype":"INT64","shape":[1,1],"data":[0]}]}'


def refusal(body: bytes, protocol: bool) -> GatherError:
    with pytest.raises(GatherError) as caught:
        read_body((body, None), MODEL, Limits()) if protocol else call(body)
    return caught.value


def with_space(body: bytes) -> tuple[bytes, int]:
    """The body with a long space at the beginning of its first array, and the byte that the mark `~` stands before."""
    before, key, after = re.split(rb'("values":\[|"data":\[)', body.replace(b"@", INDICES), maxsplit=1)
    long = before + key + SPACE + after
    return long.replace(b"~", b""), long.index(b"~")


def told(error: GatherError) -> Any:
    return error.code, [(place.pointer, place.position, place.value) for place in error.places if place.pointer]


@pytest.mark.usefixtures("compiled")
@for_each("case", [(False, name) for name in NATIVE] + [(True, name) for name in PROTOCOL])
def test_a_long_text_is_refused_at_a_byte_and_else_as_a_short_one(case: tuple[bool, str]) -> None:
    protocol, name = case
    marked, code = (PROTOCOL if protocol else NATIVE)[name]
    long, offset = with_space(marked)
    short = long.replace(SPACE, b"")
    refused_long, refused_short = refusal(long, protocol), refusal(short, protocol)
    assert refused_short.code == CODES[code]
    assert told(refused_long) == told(refused_short)
    assert [place.offset for place in refused_long.places] == [offset]
    assert all(place.offset is None for place in refused_short.places)


@pytest.mark.usefixtures("compiled")
def test_fields_of_more_than_a_megabyte_are_over_a_limit() -> None:
    error = refusal(request(rest=f', "x": "{"y" * envelope.MAX_BYTES}"'), protocol=False)
    assert (error.code, error.facts) == ("limit_exceeded", {"limit": "fields_bytes", "maximum": envelope.MAX_BYTES})


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_depth_512_is_read_and_depth_513_is_malformed(opening: str, closing: str) -> None:
    for depth, code in ((511, "invalid_field"), (512, "malformed_request")):
        assert refusal(request(rest=f', "x": {opening * depth}1{closing * depth}'), protocol=False).code == code
