"""What a test that is tried again does with what it meets."""

from __future__ import annotations

from inspect import signature

import pytest

from tests import tries
from tests.tries import TRIES, tried_again


def test_a_failure_in_every_try_fails_and_one_good_try_passes() -> None:
    met: list[int] = []

    @tried_again
    def fails_until(good: int) -> None:
        met.append(good)
        assert len(met) == good

    with pytest.raises(AssertionError):
        fails_until(TRIES + 1)
    assert len(met) == TRIES
    met.clear()
    fails_until(TRIES)
    assert len(met) == TRIES
    assert list(signature(fails_until).parameters) == ["good"], "by which pytest knows the fixtures"


def test_what_ought_to_have_been_raised_and_was_not_is_a_failure_and_a_skip_is_none() -> None:
    met: list[int] = []

    @tried_again
    def raises_nothing() -> None:
        met.append(1)
        with pytest.raises(ValueError, match="x"):
            pass

    with pytest.raises(pytest.fail.Exception):
        raises_nothing()
    assert len(met) == TRIES

    @tried_again
    def skips() -> None:
        met.append(1)
        pytest.skip("no")

    with pytest.raises(pytest.skip.Exception):
        skips()
    assert len(met) == TRIES + 1


def test_what_took_long_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tries, "LAST_BEGUN_S", -1.0)
    met: list[int] = []

    @tried_again
    def fails() -> None:
        met.append(1)
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        fails()
    assert met == [1]
