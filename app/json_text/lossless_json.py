"""Parses JSON and keeps every number as written, for values that a fast library would round."""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from math import isinf
from typing import Any, Final

from app.json_text.constants import SHORT_DIGITS

_PLAIN: Final = re.compile(r"-?[0-9]+")
MINUS_ZERO: Final = "-0"
"""The only plain integer that int() changes: as a float it is -0.0."""
MAX_DIGITS: Final = 4000
_SHOWN_CHARACTERS: Final = 64
_WORD_BITS: Final = 64
_FLOAT_INTEGERS: Final = 10.0**SHORT_DIGITS
"""A number of at most SHORT_DIGITS characters converts exactly to an integer if its magnitude is below this."""
_BEHIND_ZEROS: Final = ("", "e", "E")
"""What may follow the sign, zeros and point of a number that is zero."""


class Number:
    """A JSON number as written. It is not a str, so that it cannot be confused with a JSON string."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


FRACTIONAL: Final = frozenset((float, Number))
"""Types of numbers that are not plain integers. A number becomes a float if it is a decimal of at most SHORT_DIGITS
digits without an exponent, because a float represents such a decimal exactly (`envelope`).
"""


def loads(text: str, *, bare: bool = False) -> Any:
    """Parse a JSON document, with a `Number` for -0 and each number that is not a plain integer.

    `bare` accepts NaN and infinities without quotes, which become None. Raises ValueError if it is not JSON.
    """
    constant = _null_constant if bare else _refuse_constant
    try:
        if MINUS_ZERO not in text:  # the common case, which is faster because int is parsed without a callback
            return json.loads(text, parse_float=Number, parse_constant=constant)
    except json.JSONDecodeError:
        raise
    except ValueError:  # int() accepts at most 4,300 digits
        pass
    return json.loads(text, parse_int=integer_or_number, parse_float=Number, parse_constant=constant)


def integer_or_number(text: str) -> int | Number:
    """Convert digits to an integer, unless int() refuses them or loses their sign."""
    return int(text) if len(text) <= MAX_DIGITS and text != MINUS_ZERO else Number(text)


def _null_constant(name: str) -> None:
    """Convert NaN and infinities to None."""


def _refuse_constant(name: str) -> None:
    """Refuse NaN and the infinities, which are not JSON."""
    raise ValueError(f"{name} is not JSON")


def text_of(value: Any) -> str:
    """Return the JSON text of a value that `loads` returned, with its numbers as written.

    To avoid recursion, objects are written without members, and lists within a list are written as objects.
    """
    if isinstance(value, list):
        return f"[{','.join(map(_item_text, value))}]"
    return _item_text(value)


def _item_text(value: Any) -> str:
    if type(value) is Number:
        return value.text
    return "{}" if isinstance(value, (dict, list)) else json.dumps(value)


def integer(value: Any, max_digits: int = MAX_DIGITS) -> int | None:
    """Return the exact integer of a JSON value, including `1.0` and `1e2`; None if it is not an integer.

    Integers with more than `max_digits` digits are replaced by ±10**max_digits, which is out of every range. This
    avoids computing larger powers.
    """
    if type(value) is Number:
        text = value.text
        if len(text) <= SHORT_DIGITS:
            near = float(text)
            if not near:  # zero, or a number that underflows
                return 0 if text.lstrip("-0.")[:1] in _BEHIND_ZEROS else None
            if -_FLOAT_INTEGERS < near < _FLOAT_INTEGERS:
                return int(near) if near.is_integer() else None
    elif type(value) is float:
        return int(value) if value.is_integer() else None
    elif type(value) is int:
        whole: int = value
        return whole if whole.bit_length() <= _WORD_BITS else max(-(10**max_digits), min(whole, 10**max_digits))
    else:
        return None
    try:
        number = Decimal(value.text)
    except InvalidOperation:  # an exponent with more than 18 digits
        mantissa, exponent = value.text.lower().split("e")
        if not Decimal(mantissa):
            return 0
        return None if exponent.startswith("-") else _huge_integer(value, max_digits)
    integral = number.to_integral_value()
    if integral != number:
        return None
    return _huge_integer(value, max_digits) if number and number.adjusted() >= max_digits else int(integral)


def _huge_integer(number: Number, max_digits: int) -> int:
    power: int = 10**max_digits
    return -power if number.text.startswith("-") else power


def shown(value: object) -> int | float | str | None:
    """Convert a JSON value for an error body: text is shortened, and a number that does not fit in 64 bits becomes
    text.
    """
    if type(value) is int:
        return value if -(2**63) <= value < 2**64 else _cut(str(value))
    if type(value) is float:
        return value
    if type(value) is Number:
        text = value.text
        if _PLAIN.fullmatch(text):
            if len(text) <= 20 and -(2**63) <= int(text) < 2**64:
                return int(text)
        elif not isinf(float(text)):
            return float(text)
        return _cut(text)
    if isinstance(value, str):
        return _cut(value)
    return value if isinstance(value, bool) else None


def printable(text: str) -> str:
    """Replace each lone surrogate, which UTF-8 cannot encode, with a question mark."""
    return text.encode("utf-8", "replace").decode()


def _cut(text: str) -> str:
    cut = printable(text[: _SHOWN_CHARACTERS + 1])
    return cut if len(text) <= _SHOWN_CHARACTERS else cut[:_SHOWN_CHARACTERS] + "…"
