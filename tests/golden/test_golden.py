"""The service answers the requests of the corpus as it did when the answers were written.

`.venv/bin/python -m tests.golden.write` writes them anew; `git diff` then shows what has changed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from app.errors import CODES
from tests.golden.answers import FLAGS, Service, difference, kept, service
from tests.golden.requests import GROUPS, Asked, of_group, requests
from tests.http.conftest import Start, start
from tests.http.server import check_hint

__all__ = ["start"]

SHOWN = 5
NEEDS_A_STATE = {
    "internal", "unauthorized", "overloaded", "not_ready", "deadline_exceeded", "request_timeout", "header_too_large",
    "import_failed", "tensor_in_use", "insufficient_storage", "tensor_damaged",
    "shard_unavailable",
}  # fmt: skip
"""Codes that a service without keys, limits, peers and damage does not give."""


@pytest.fixture(scope="module", params=["numba", pytest.param("numpy", marks=pytest.mark.slow)])
def asking(request: pytest.FixtureRequest, start: Start) -> Iterator[Service]:
    """A service that compiles, and one whose answers come from plain functions and NumPy."""
    with start(*FLAGS, "--kernel", request.param) as server, service(server.port) as made:
        yield made


def test_the_requests_have_the_bytes_that_were_answered() -> None:
    answered = {name: line.split(" ", 2)[1] for name, line in kept().items()}
    assert {each.name: each.digest for each in requests()} == answered


def test_every_code_that_needs_no_state_is_answered() -> None:
    found = {code for line in kept().values() for code in re.findall(r'"code":"(\w+)"', line)}
    assert found == set(CODES) - NEEDS_A_STATE


def test_every_hint_that_was_kept_is_a_short_sentence() -> None:
    for line in kept().values():
        for hint in re.findall(r'"hint":("(?:[^"\\]|\\.)*")', line):
            check_hint(json.loads(hint))


@pytest.mark.parametrize("group", GROUPS)
def test_every_answer_is_the_one_that_was_kept(group: str, asking: Service) -> None:
    wanted = kept()
    new = [each.name for each in of_group(group) if each.name not in wanted]
    assert not new, f"no answer is kept to {new}: write them with .venv/bin/python -m tests.golden.write"
    different = list[tuple[Asked, str]]()
    for each in of_group(group):
        found = asking.ask(each)
        if found != wanted[each.name]:
            different.append((each, found))
    shown = [difference(each, wanted[each.name], found) for each, found in different[:SHOWN]]
    assert not different, f"{len(different)} answers differ:\n\n" + "\n\n".join(shown)
