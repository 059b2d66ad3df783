"""The field Accept: what is read in it, and what is chosen."""

from __future__ import annotations

import pytest

from app.api.accept_header import admitted, media_weights, preferred

JSON, OTHER, THIRD = b"application/json", b"application/x-other", b"application/x-third"


@pytest.mark.parametrize(
    ("field", "weights"),
    [
        (b"", {b"": 1.0}),
        (b"a/b", {b"a/b": 1.0}),
        (b" A/B ; Q=0.5 ,c/d", {b"a/b": 0.5, b"c/d": 1.0}),
        (b"a/b;charset=utf-8;q=.25", {b"a/b": 0.25}),
        (b"a/b;q=0, a/b", {b"a/b": 0.0}),
        (b"a/b;q=1.", {b"a/b": 1.0}),
        (b"a/b;q", {b"a/b": 0.0}),
    ],
)
def test_types_are_read_with_their_weights(field: bytes, weights: dict[bytes, float]) -> None:
    assert media_weights(field) == weights


@pytest.mark.parametrize("weight", [b"nan", b"inf", b"-1", b"1e3", b"zero", b"", b"0x1", b"1_0", b"0.5 0.5", b"\xb2"])
def test_a_weight_that_is_no_number_is_nothing(weight: bytes) -> None:
    assert media_weights(b"a/b;q=" + weight) == {b"a/b": 0.0}


def test_a_field_without_end_is_read_up_to_a_limit() -> None:
    assert len(media_weights(b",".join(b"a/%d" % number for number in range(10_000)))) == 64


@pytest.mark.parametrize(
    ("field", "by_range", "all_admitted"),
    [
        (b"*/*", JSON, [JSON, OTHER, THIRD]),
        (b"application/*", JSON, [JSON, OTHER, THIRD]),
        (OTHER, OTHER, [OTHER]),
        (OTHER + b", */*", JSON, [OTHER, JSON, THIRD]),
        (OTHER + b", */*;q=0.1", OTHER, [OTHER, JSON, THIRD]),
        (OTHER + b", application/*;q=0, */*", OTHER, [OTHER]),
        (JSON + b";q=0, */*", OTHER, [OTHER, THIRD]),
        (JSON + b";q=0, " + OTHER + b";q=0", JSON, [JSON]),
        (THIRD + b", " + OTHER, OTHER, [THIRD, OTHER]),
        (THIRD + b";q=0.5, " + OTHER + b";q=0.6, text/html", OTHER, [OTHER, THIRD]),
        (b"text/html", JSON, [JSON]),
        (b";;,q", JSON, [JSON]),
        (OTHER + b";q=nan", JSON, [JSON]),
    ],
)
def test_the_greatest_weight_is_chosen(field: bytes, by_range: bytes, all_admitted: list[bytes]) -> None:
    offered = (JSON, OTHER, THIRD)
    assert preferred(field, offered, JSON) == by_range
    assert admitted(field, offered, JSON) == all_admitted
