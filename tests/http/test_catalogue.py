"""The hints of the catalogue, and errors of many indices; the golden corpus has a request for each code."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from app.errors import CATALOGUE, CODES, Code, GatherError, Place
from app.errors.hints import hint_of
from tests.conformance.cases import at
from tests.for_each import for_each
from tests.http.forms import int64, packed, tensor
from tests.http.server import check_hint


def body(indices: Any) -> dict[str, Any]:
    return {"data": tensor("float32", [2, 2], [0, 1, 2, 3]), "indices": indices}


def test_twenty_bad_indices_are_counted_and_ten_are_shown(every_client: httpx.Client) -> None:
    values = [9, 0] * 20
    found = every_client.post("/gathernd", json=body(indices=int64([20, 2], values))).json()
    assert found["total"] == 20
    assert [place["pointer"] for place in found["errors"]] == [f"/indices/values/{2 * row}" for row in range(10)]
    assert [place["position"] for place in found["errors"]] == [[row, 0] for row in range(10)]


@pytest.mark.parametrize(("place", "value"), [(0, 2), (499_999, -3), (500_000, 2**62), (999_999, 2)])
def test_one_bad_index_in_a_million_is_found_and_named(every_client: httpx.Client, place: int, value: int) -> None:
    values = [0] * 1_000_000
    values[place] = value
    answer = every_client.post("/gathernd", json=body(indices=packed(int64([500_000, 2], values))))
    assert answer.status_code == 422
    found = answer.json()
    assert found["total"] == 1
    assert found["errors"] == at(
        "/indices/base64",
        position=[place // 2, place % 2],
        value=value,
        axis=place % 2,
        size=2,
        allowed=[-2, 1],
    )


def full_error(code: Code) -> GatherError:
    """An error that has all that templates of hints may name."""
    place = Place("/indices/values/1", (1,), 5, axis=0, size=2, allowed=(-2, 1))
    return GatherError(code, "wrong", places=[place], facts={"limit": "rank", "maximum": 32}, retry_after=3)


@for_each("code", CODES)
def test_the_catalogue_has_a_hint_for_every_code_with_facts_and_without(code: Code) -> None:
    for error in (GatherError(code, "wrong"), GatherError(code, "wrong", pointer=""), full_error(code)):
        hint = hint_of(error, 1)
        check_hint(hint)
        assert hint.count(". ") == 0, "a hint is one sentence"
    assert all(hint.strip() == hint for hint in CATALOGUE[code].hints)
