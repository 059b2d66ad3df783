"""Ids of requests: what callers may send, and those that are made here."""

from __future__ import annotations

import pytest

from app.telemetry.request_id import PREFIX, REQUEST_ID, numbered_id, random_id


@pytest.mark.parametrize("given", ["a", "5f2c9a1e-1", "A.b_C-9", "x" * 128])
def test_letters_digits_and_three_marks_are_an_id(given: str) -> None:
    assert REQUEST_ID.fullmatch(given)


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\n", "a\r\nb", "é", "a/b", '"a"'])
def test_what_could_break_a_line_or_is_too_long_is_no_id(given: str) -> None:
    assert not REQUEST_ID.fullmatch(given)


def test_the_ids_of_a_process_share_a_prefix_and_have_the_form_of_those_that_callers_send() -> None:
    ids = [numbered_id(number) for number in (0, 1, 16**10 - 1)]
    assert ids == [f"{PREFIX}-0000000000", f"{PREFIX}-0000000001", f"{PREFIX}-ffffffffff"]
    assert all(REQUEST_ID.fullmatch(made) for made in (*ids, random_id()))


def test_ids_without_a_number_differ() -> None:
    assert len({random_id() for _ in range(100)}) == 100
