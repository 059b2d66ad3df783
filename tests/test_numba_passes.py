"""Functions that only compiled ones call, and what Numba makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from numba import types
from numba.core.errors import TypingError, UnsupportedError

from app.compilation.decorators import entry, inlined, inner, spliced


@spliced
def plus_one(number: int) -> int:
    return number + 1


@inlined
def doubled(number: int) -> int:
    return 2 * plus_one(number)


@inner
def squared(number: int) -> int:
    return doubled(number) ** 2 if number < 100 else power_of_large(number)


@inner
def power_of_large(number: int) -> int:
    total = 0
    for _ in range(number):
        total += number
    return total


@entry
def whole(number: int) -> int:
    return squared(number) + doubled(number)


@inner
def refusing(number: int) -> int:
    if number < 0:
        raise ValueError(number)
    return number


@inner
def even(number: int) -> bool:
    return number == 0 or odd(number - 1)


@inner
def odd(number: int) -> bool:
    return number != 0 and even(number - 1)


def test_inner_functions_are_part_of_those_that_call_them() -> None:
    assert [whole(number) for number in (0, 3, 200)] == [4 + 2, 64 + 8, 40_000 + 402]


def test_a_call_from_python_says_who_may_call() -> None:
    whole(1)
    with pytest.raises(KeyError, match="only compiled functions call squared"):
        squared(2)


@pytest.mark.parametrize(("function", "text"), [(refusing, "refusing raises"), (even, "called by one that it calls")])
def test_what_needs_native_code_of_its_own_is_refused_while_it_is_compiled(function: Any, text: str) -> None:
    with pytest.raises((TypingError, UnsupportedError), match=text):
        function.compile((types.int64,))
