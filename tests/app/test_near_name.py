"""The name that was probably meant, out of names that are looked at within a bound."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.near_name import MOST_CHARACTERS, MOST_NAMES, near_name, replacement_text, shorten
from tests.for_each import for_each

FIELDS = ("batch_dims", "data", "device", "dialect", "indices", "output_encoding")


@for_each(
    ("given", "names", "near"),
    [
        ("itmes", ("items", "users"), "items"),
        ("batch-dims", FIELDS, "batch_dims"),
        ("index", FIELDS, "indices"),
        ("axis", FIELDS, None),
        ("", FIELDS, None),
        ("tpu", ("auto", "cpu", "gpu"), None),
        ("/GatherND", ("/gather", "/gathernd"), "/gathernd"),
        ("items", (), None),
        ("a" * (MOST_CHARACTERS + 1), ("a" * MOST_CHARACTERS,), None),
        (
            f"{'table_of_items_' * 4}7",
            (f"{'table_of_users_' * 4}7", f"{'table_of_items_' * 4}8"),
            f"{'table_of_items_' * 4}8",
        ),
        (f"{'x' * 50}itmes{'y' * 50}", (f"{'x' * 50}items{'y' * 50}", "x" * 100), f"{'x' * 50}items{'y' * 50}"),
    ],
)
def test_the_name_that_is_most_like_it_is_found_and_no_other(
    given: str, names: tuple[str, ...], near: str | None
) -> None:
    assert near_name(given, names) == near


def test_of_very_many_names_the_first_are_looked_at() -> None:
    looked_at = []

    def names() -> Iterator[str]:
        for number in range(10 * MOST_NAMES):
            looked_at.append(number)
            yield f"table_{number}"

    assert near_name("tabel_7", names()) == "table_7"
    assert len(looked_at) == MOST_NAMES


def test_of_long_names_not_each_character_is_compared_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand names that are all alike took 13 ms of the event loop."""
    monkeypatch.delattr("app.near_name.SequenceMatcher")
    names = [f"{'x' * (MOST_CHARACTERS - 10)}{number:06d}" for number in range(MOST_NAMES)]
    assert near_name(f"{'x' * (MOST_CHARACTERS - 10)}00007z", names) in names[70:80]


def test_a_long_text_of_the_request_is_cut() -> None:
    assert shorten("a" * 80) == "a" * 80
    assert replacement_text("b" * 1000, "c") == f"Write 'c' in place of '{'b' * 80}…'"
