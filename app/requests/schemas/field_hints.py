"""Hints for invalid fields of requests: how to correct the value or the name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from app.json_text import lossless_json
from app.near_name import near_name, replacement_text, shorten
from app.requests.schemas.member_types import (
    BOOLEAN,
    DIMENSION,
    FEATURES,
    FINITE,
    INTEGER,
    JSON_TEXT,
    LOOKUP_TEXT,
    SIZES_TEXT,
    TRUE_OR_FALSE,
    Detail,
)

TYPES: Final = {"dtype": ("float32", "int64"), "datatype": ("FP32", "INT64")}
"""Example types for each member that holds the name of a type: for data, and for indices."""
FORMS: Final = {
    "aliases": 'an object, such as {"live": "items@7"}',
    "data_shape": "a list of the sizes, such as [4, 2]",
    "id": 'a text, such as "1"',
    "if_match": 'the ETag of the alias as GET /aliases has it, or "*"',
    "if_none_match": '"*", or the ETag of the alias as GET /aliases has it',
    "inputs": 'a list of inputs, such as [{"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [0]}]',
    "name": 'a name, such as "indices"',
    "note": 'a text, such as "run 7, commit 9f31c02"',
    "outputs": 'a list of outputs, such as [{"name": "output"}]',
    "parameters": "an object, such as {}",
    "replicas": "a whole number from 1 to 100, such as 2",
    "shape": "a list of the sizes, such as [2, 3]",
    "tensor": "the name of a tensor that GET /tensors lists",
    "url": 'a text, such as "https://host/folder/table.npy"',
}
"""Descriptions of a valid value, by the name of the member."""
ITEM_FORMS: Final = {
    "inputs": "an object with the name, datatype, shape and data of an input",
    "outputs": 'an object with the name of an output, such as {"name": "output"}',
}
"""Descriptions of a valid item, by the name of the list."""
_OPSET: Final = re.compile(r"onnx-([1-9][0-9]{0,2})")
_DIGITS: Final = re.compile(r"-?[0-9]{1,20}")
_DECIMAL: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,20})(?:\.[0-9]{1,20})?")
_MOST_SIZES: Final = 80
"""Maximum characters of an invalid shape that a hint quotes."""


def name_hint(given: str, known: Collection[str], fields: Collection[str] = (), where: str = "") -> str:
    """Return how to correct the name of a field that is not in `known`.

    The names in `fields` are already used. `where`, such as " in the query", is appended to the name.
    """
    near = near_name(given, (name for name in sorted(known) if name not in fields))
    if near is not None:
        return f"{replacement_text(given, near)}{where}."
    if not known:
        return f"Leave out {shorten(given)!r}{where}, since there are no fields here."
    return f"Leave out {shorten(given)!r}{where}, since the fields here are {', '.join(sorted(known))}."


def integer_hint(value: object, pointer: str) -> str:
    """Return how to correct a value that should be an integer."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return f"Write {value} without quotes at {pointer}."
    if isinstance(value, bool):
        return f"Write {int(value)} in place of {str(value).lower()} at {pointer}."
    return f"Write a whole number at {pointer}, as in 0 or 2, and for a size none below 0."


def allowed_hint(name: str, value: object, allowed: Sequence[str], pointer: str) -> str:
    """Return how to correct a value that should be one of `allowed`."""
    if len(allowed) == 1:
        return f"Write '{allowed[0]}' at {pointer}."
    listed = ", ".join(map(str, allowed))
    near = _nearest_value(name, value, allowed) if isinstance(value, str) else None
    if near is None:
        return f"Write one of {listed} at {pointer}."
    return f"{replacement_text(str(lossless_json.shown(value)), near)} at {pointer}; it is one of {listed}."


def _boolean_hint(value: object, pointer: str) -> str:
    shown = str(lossless_json.shown(value)).lower()
    if isinstance(value, str) and shown in ("true", "false"):
        return f"Write {shown} without quotes at {pointer}."
    if shown in ("0", "1"):
        return f"Write {'true' if shown == '1' else 'false'} in place of {shown} at {pointer}."
    return f"Write true or false at {pointer}."


def _finite_hint(value: object, pointer: str) -> str:
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        return f"Write {value} without quotes at {pointer}."
    return f"Write a finite number at {pointer}, such as 1 or 0.5."


def _json_text_hint(value: object, pointer: str) -> str:
    if isinstance(value, (int, float, lossless_json.Number)):
        return f"Write {shorten(lossless_json.text_of(value))} in double quotes at {pointer}."
    return f"Write JSON text in double quotes at {pointer}, such as 0."


def _nearest_value(name: str, given: str, allowed: Sequence[str]) -> str | None:
    """Return the value of `allowed` that was probably meant for the `name` member, or None.

    An ONNX opset contains the newest version of each operator up to that opset: opset 17 contains ScatterND-16.
    """
    opset = _OPSET.fullmatch(given) if name == "dialect" else None
    if opset is not None:
        versions = (int(known[1]) for each in allowed if (known := _OPSET.fullmatch(each)))
        newest = max((version for version in versions if version <= int(opset[1])), default=None)
        if newest is not None:
            return f"onnx-{newest}"
    return near_name(given, allowed)


def _lookup_text_hint(value: object, pointer: str) -> str:
    if type(value) is dict:
        return f"Write the object at {pointer} as a string, with a backslash before each of its quotes."
    return (
        f'Write JSON text in double quotes at {pointer}, such as "{{\\"features\\": [{{\\"tensor\\": \\"items\\"}}]}}".'
    )


def _features_hint(value: object, pointer: str) -> str:
    if type(value) is dict:
        return f"Write a list at {pointer}, even of a single feature: the object that is there, in brackets."
    return f"Write a list at {pointer}, with an object of 'tensor' and 'indices' for each feature."


def _sizes_text_hint(value: object, pointer: str) -> str:
    sizes = [size.strip() for size in re.split("[x*;, ]+", str(value)[:_MOST_SIZES].strip("[]() ,"))]
    if all(re.fullmatch("[0-9]{1,19}", size) for size in sizes):
        return f"Write {','.join(sizes)} at {pointer}: the sizes with commas between them and no more."
    return f"Write the sizes with commas between them at {pointer}, as in 200000,64."


VALUE_HINTS: Final[Mapping[Detail, Callable[[object, str], str]]] = {
    INTEGER: integer_hint,
    DIMENSION: integer_hint,
    BOOLEAN: _boolean_hint,
    TRUE_OR_FALSE: lambda value, pointer: allowed_hint("", value, ("true", "false"), pointer),
    FINITE: _finite_hint,
    JSON_TEXT: _json_text_hint,
    FEATURES: _features_hint,
    LOOKUP_TEXT: _lookup_text_hint,
    SIZES_TEXT: _sizes_text_hint,
}
"""Functions that return how to correct a value, by the message for the value. Each takes the value and its pointer."""
