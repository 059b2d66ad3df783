"""The known-answer cases, in every form of JSON and on every CPU kernel.

The file is other people's test data and lies outside the repository: GATHERND_CASES names it, or it stands at
../shared/cases/gather_cases.json beside the checkout.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.forms import items, nested, packed, same
from tests.http.server import ROOT

FILE = Path(os.environ.get("GATHERND_CASES") or ROOT.parent / "shared" / "cases" / "gather_cases.json")
CASES: list[dict[str, Any]] = json.loads(FILE.read_text()) if FILE.is_file() else []
pytestmark = pytest.mark.skipif(
    not CASES, reason="no known-answer cases: set GATHERND_CASES to the file gather_cases.json"
)


def request_of(case: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Path and body."""
    body = {"data": case["data"], "indices": case["indices"], "dialect": case["request_dialect"]}
    if case["op"] == "Gather":
        return "/gather", {**body, "axis": case["axis"]}
    return "/gathernd", {**body, "batch_dims": case["batch_dims"]}


def test_all_cases_are_there() -> None:
    assert len(CASES) >= 102


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_known_case_has_its_known_answer(number: int, every_client: httpx.Client) -> None:
    case = CASES[number]
    path, body = request_of(case)
    forms = {"flat": body}
    forms["nested"] = {**body, "data": nested(body["data"]), "indices": nested(body["indices"])}
    forms["base64"] = {
        **body,
        "data": packed(body["data"]),
        "indices": packed(body["indices"]),
        "output_encoding": "base64",
    }
    for form, sent in forms.items():
        answer = every_client.post(path, json=sent)
        about = (form, case["source"], answer.text[:500])
        expected = case["expect"]
        if "error" in expected:
            assert answer.status_code == 422, about
            assert answer.json()["code"] == expected["code"], about
        else:
            assert answer.status_code == 200, about
            found, known = answer.json()["output"], expected["output"]
            assert found["dtype"] == known["dtype"] == case["data"]["dtype"], about
            assert found["shape"] == known["shape"], about
            assert same(known["dtype"], items(found), known["values"]), about
            assert answer.json()["dialect"] == case["request_dialect"], about
