"""A table of small cases as one test: of many cases each alone would cost pytest more than it takes.

`for_each` stands where `pytest.mark.parametrize` would. Every case runs; the first failure is raised, with a note that
names its case and the others that failed. Fixtures are made once for all cases, so only a test that leaves nothing
behind in them may use it, and no case may skip.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from tests.conftest import SOAK, TEST_ALL

Case = dict[str, Any]
SHOWN = 20
"""So many failed cases are named."""


def for_each(names: str | Sequence[str], values: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The test for each of `values`, given as `pytest.mark.parametrize` takes them.

    Several on one test give each value of one with each of the others. `pytest.param` marks a value as `slow` or
    `soak`: it is left out where such tests do not run.
    """
    several = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    rows = [row for value in values if (row := _row(several, value)) is not None]
    if not rows:
        raise ValueError(f"no values of {names}")

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        alone: list[Case] = [{}]
        innermost, cases = getattr(function, "table", (function, alone))
        return _one_test(function, innermost, [{**row, **case} for case in cases for row in rows])

    return decorate


def _row(names: list[str], value: Any) -> Case | None:
    """One value by the names of its parameters; None where its marks leave it out."""
    if isinstance(value, type(pytest.param())):
        marks = {mark.name if isinstance(mark, pytest.Mark) else mark.mark.name for mark in value.marks}
        if marks - {"slow", "soak"}:
            raise ValueError(f"only the marks slow and soak are known here, not {marks}")
        if ("slow" in marks and not TEST_ALL) or ("soak" in marks and not SOAK):
            return None
        items = value.values
    else:
        items = (value,) if len(names) == 1 else tuple(value)
    return dict(zip(names, items, strict=True))


def _one_test(marked: Callable[..., Any], function: Callable[..., Any], cases: list[Case]) -> Callable[..., Any]:
    """`function` over the cases, with the marks of `marked`."""

    @functools.wraps(marked)
    def test(*args: Any, **fixtures: Any) -> None:
        failed: list[tuple[Case, BaseException]] = []
        for case in cases:
            try:
                function(*args, **fixtures, **case)
            except pytest.skip.Exception as skipped:
                raise AssertionError(f"a case of a table skips: {_named(case)}") from skipped
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001
                failed.append((case, error))
        if failed:
            first = failed[0][1]
            first.add_note(f"{len(failed)} of {len(cases)} cases failed, this one first:")
            for case, _ in failed[:SHOWN]:
                first.add_note(f"  {_named(case)}")
            raise first

    signature = inspect.signature(function)
    kept = [each for name, each in signature.parameters.items() if name not in cases[0]]
    test.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    test.table = (function, cases)  # type: ignore[attr-defined]
    return test


def _named(case: Case) -> str:
    return ", ".join(f"{name}={value!r:.120}" for name, value in case.items())
