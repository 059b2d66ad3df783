"""The small part of a JSON body, read with every number as it was written: for what a fast library would round."""

from __future__ import annotations

import json
import re
from math import isinf
from typing import Any, Final

_NUMBER: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?)0*([0-9]*))?")
_PLAIN: Final = re.compile(r"-?[0-9]+")
_MOST_DIGITS: Final = 4000
_SHOWN: Final = 64


class Number(str):
    """A JSON number, as it was written."""

    __slots__ = ()


def loads(text: str) -> Any:
    """The value of a JSON document, whose grammar has been checked, with a `Number` for each number."""
    return json.loads(text, parse_int=Number, parse_float=Number)


def integer(value: Any) -> int | None:
    """The integer that a JSON value is, `1.0` and `1e2` included, exactly; None where it is none.

    Beyond 4,000 digits it is ±10**4000, which is as far out of every range: nobody makes the service compute more.
    """
    if type(value) is int:
        return int(value)
    match = _NUMBER.fullmatch(value) if isinstance(value, Number) else None
    if match is None:
        return None
    sign, whole, part, exponent_sign, exponent_digits = match.groups(default="")
    written = whole + part
    digits = written.rstrip("0")
    power = int(exponent_digits[:20] or "0")
    power = (-power if exponent_sign == "-" else power) + len(written) - len(digits) - len(part)
    digits = digits.lstrip("0")
    if not digits:
        return 0
    if power < 0:
        return None
    size: int = 10**_MOST_DIGITS if len(digits) + power > _MOST_DIGITS else int(digits) * 10**power
    return -size if sign else size


def shown(value: object) -> int | float | str | None:
    """A JSON value for an error's body: text is cut, and a number that 64 bits cannot hold is shown as written."""
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
    text = printable(text)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
