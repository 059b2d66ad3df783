"""Every code of the catalogue is reached through HTTP, with its status, its rule, and the place in the request.

The codes that one request to a healthy server provokes are in `PROVOKED`; those that need a server in a certain state
have tests of their own, in test_overload.py, test_raw.py and test_slow_senders.py.
"""

from __future__ import annotations

import json
import re

import httpx
import pytest

from app.errors import CODES, Code, GatherError, Place
from app.errors.catalogue import CATALOGUE
from app.errors.hints import SETTING_OF_LIMIT, hint_of
from app.settings import SETTING_NAMES
from tests.for_each import for_each
from tests.http.forms import int64, packed
from tests.http.provoked import PROVOKED, at, body
from tests.http.server import check_hint


@for_each("number", range(len(PROVOKED)))
def test_a_broken_request_is_told_what_is_wrong_and_where(number: int, client: httpx.Client) -> None:
    case = PROVOKED[number]
    content = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    answer = client.post(case.path, content=content, headers=case.headers)
    about = (content[:300], answer.text[:1000])
    found = answer.json()
    assert found["code"] == case.code, about
    assert answer.status_code == CATALOGUE[case.code].status, about  # type: ignore[index]
    assert found.get("errors") == (case.errors or None), about
    assert found.get("total") == (case.total or (len(case.errors) if case.errors else None)), about
    if case.rule is None:
        assert "rule" not in found, about
    else:
        assert (found["rule"]["dialect"], found["rule"]["clause"]) == case.rule, about
        assert found["rule"]["text"], about
    assert {name: found[name] for name in ("limit", "maximum") if name in found} == case.facts, about


def test_an_unknown_code_has_no_page(client: httpx.Client) -> None:
    assert client.get("/errors/nonsense").json()["code"] == "not_found"


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


def test_every_component_of_a_large_request_is_counted(every_client: httpx.Client) -> None:
    values = [1, -1, 0, -2, 7, -9] * 50_000
    found = every_client.post("/gathernd", json=body(indices=packed(int64([150_000, 2], values)))).json()
    assert found["total"] == 100_000
    assert [place["value"] for place in found["errors"]] == [7, -9] * 5
    assert [place["position"] for place in found["errors"][:3]] == [[2, 0], [2, 1], [5, 0]]


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


def test_a_limit_that_an_operator_may_raise_is_named_by_its_setting() -> None:
    for limit, settings in SETTING_OF_LIMIT.items():
        for setting in re.findall("GATHERND_[A-Z_]+", settings):
            assert setting in SETTING_NAMES, limit
    hints = {code: hint_of(full_error(code), 1) for code in CODES}
    named = {code for code, hint in hints.items() if "GATHERND_MAX_RANK" in hint}
    assert named == {
        "header_too_large", "payload_too_large", "output_too_large", "limit_exceeded", "overloaded",
        "insufficient_storage",
    }  # fmt: skip
