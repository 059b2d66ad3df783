"""A JSON envelope, read with every number as it was written: for what a fast library would round."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from math import isinf
from typing import Any, Final

from app.errors import GatherError

_NUMBER: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]*))?")
_PLAIN: Final = re.compile(r"-?[0-9]+")
MOST_DIGITS: Final = 4000
_SHOWN: Final = 64
_WORD: Final = 64
_DIMENSION_DIGITS: Final = 40
_MOST_ODD: Final = 256


class Number(str):
    """A JSON number, as it was written."""

    __slots__ = ()


def loads(text: str) -> Any:
    """The value of a JSON document, whose grammar has been checked, with a `Number` for each that is no plain integer.

    NaN and infinities without quotes, where the check has let them pass, are None.
    """
    try:
        return json.loads(text, parse_float=Number, parse_constant=_nothing)
    except ValueError:  # int() takes no more than 4,300 digits; a Number takes three times as long as an int
        return json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_nothing)


def _nothing(name: str) -> None:
    """What NaN and the infinities are read as."""


def integer(value: Any, most_digits: int = MOST_DIGITS) -> int | None:
    """The integer that a JSON value is, `1.0` and `1e2` included, exactly; None where it is none.

    Beyond `most_digits` it is ±10**most_digits, which is as far out of every range: nobody makes the service compute
    more.
    """
    if type(value) is int:
        whole: int = value
        return whole if whole.bit_length() <= _WORD else max(-(10**most_digits), min(whole, 10**most_digits))
    match = _NUMBER.fullmatch(value) if isinstance(value, Number) else None
    if match is None:
        return None
    sign, before, part, exponent_sign, exponent_digits = match.groups(default="")
    written = before + part
    digits = written.rstrip("0")
    power = int(exponent_digits[:20] or "0")
    power = (-power if exponent_sign == "-" else power) + len(written) - len(digits) - len(part)
    digits = digits.lstrip("0")
    if not digits:
        return 0
    if power < 0:
        return None
    size: int = 10**most_digits if len(digits) + power > most_digits else int(digits) * 10**power
    return -size if sign else size


def dimensions(sizes: Sequence[Any]) -> tuple[int, ...] | int:
    """A shape, exactly, cut to 10**40; where it is none, the number of the first that is no dimension.

    Raises limit_exceeded where very many are not written as plain integers, each of which takes microseconds.
    """
    shape = []
    if len(sizes) > _MOST_ODD and sum(type(size) is Number for size in sizes) > _MOST_ODD:
        detail = f"more than {_MOST_ODD} dimensions of a shape have a fraction or an exponent"
        raise GatherError("limit_exceeded", detail, facts={"limit": "odd_dimensions", "maximum": _MOST_ODD})
    for axis, size in enumerate(sizes):
        whole = integer(size, _DIMENSION_DIGITS)
        if whole is None or whole < 0:
            return axis
        shape.append(whole)
    return tuple(shape)


def shown(value: object) -> int | float | str | None:
    """A JSON value for an error's body: text is cut, and a number that 64 bits cannot hold is shown as written."""
    if type(value) is int:
        return value if -(2**63) <= value < 2**64 else _cut(str(value))
    if type(value) is Number:
        if _PLAIN.fullmatch(value):
            if len(value) <= 20 and -(2**63) <= int(value) < 2**64:
                return int(value)
        elif not isinf(float(value)):
            return float(value)
        return _cut(value)
    if isinstance(value, str):
        return _cut(value)
    return value if isinstance(value, bool) else None


def printable(text: str) -> str:
    """`text` with a question mark for each lone surrogate, which UTF-8 cannot carry."""
    return text.encode("utf-8", "replace").decode()


def _cut(text: str) -> str:
    cut = printable(text[: _SHOWN + 1])
    return cut if len(text) <= _SHOWN else cut[:_SHOWN] + "…"
