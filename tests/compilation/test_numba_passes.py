"""Functions that only compiled ones call, and what Numba makes of them."""

from __future__ import annotations

from typing import Any

import pytest
from numba import types
from numba.core.errors import TypingError, UnsupportedError

from app.compilation.decorators import entry, inlined, inner


@inlined
def doubled(number: int) -> int:
    return 2 * number


@inner
def squared(number: int) -> int:
    return doubled(number) ** 2


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
    assert whole(3) == 36 + 6
    with pytest.raises(KeyError, match="only compiled functions call squared"):
        squared(2)


@pytest.mark.parametrize(("function", "text"), [(refusing, "refusing raises"), (even, "called by one that it calls")])
def test_what_needs_native_code_of_its_own_is_refused_while_it_is_compiled(function: Any, text: str) -> None:
    with pytest.raises((TypingError, UnsupportedError), match=text):
        function.compile((types.int64,))
