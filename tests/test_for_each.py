"""Tables of cases as one test, tried on small ones."""

from __future__ import annotations

import inspect

import pytest

from tests.conftest import TEST_ALL
from tests.for_each import for_each


def test_every_case_runs_with_each_of_the_others_and_with_the_fixtures() -> None:
    seen: list[tuple[str, int, int]] = []

    @for_each("letter", ["a", "b"])
    @for_each(("one", "two"), [(1, 2), pytest.param(3, 4, id="the second")])
    def tried(fixture: str, letter: str, one: int, two: int) -> None:
        seen.append((fixture + letter, one, two))

    assert list(inspect.signature(tried).parameters) == ["fixture"]
    tried(fixture="x")
    assert sorted(seen) == [("xa", 1, 2), ("xa", 3, 4), ("xb", 1, 2), ("xb", 3, 4)]


def test_the_failed_cases_are_named_and_the_others_run() -> None:
    seen: list[int] = []

    @for_each("number", range(6))
    def tried(number: int) -> None:
        seen.append(number)
        assert number % 3 != 1, f"it is {number}"

    with pytest.raises(AssertionError, match="it is 1") as failure:
        tried()
    assert seen == list(range(6))
    assert failure.value.__notes__ == ["2 of 6 cases failed, this one first:", "  number=1", "  number=4"]


def test_pytest_fail_is_a_failure_of_its_case() -> None:
    @for_each("number", range(3))
    def tried(number: int) -> None:
        with pytest.raises(ZeroDivisionError):
            divmod(1, number if number == 1 else 0)

    with pytest.raises(pytest.fail.Exception) as failure:
        tried()
    assert "  number=1" in failure.value.__notes__


def test_slow_values_are_left_out_of_make_test() -> None:
    seen: list[int] = []

    @for_each("number", [1, pytest.param(2, marks=pytest.mark.slow)])
    def tried(number: int) -> None:
        seen.append(number)

    tried()
    assert seen == ([1, 2] if TEST_ALL else [1])


def test_a_case_does_not_skip_and_a_table_has_cases() -> None:
    @for_each("number", [1])
    def tried(number: int) -> None:
        pytest.skip("here")

    with pytest.raises(AssertionError, match="number=1"):
        tried()
    with pytest.raises(ValueError, match="no values of number"):
        for_each("number", [])
    with pytest.raises(ValueError, match="xfail"):
        for_each("number", [pytest.param(1, marks=pytest.mark.xfail)])
