"""Hints for lists whose nesting does not match the tensor's shape.

They identify the list that differs and its number of values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

from app.near_name import shorten
from app.tensors.little_endian_items import bounded_product, items_text

_LOOKED_AT: Final = 1 << 14
_MOST_TOKENS: Final = 1 << 11
"""Maximum number of bytes, and of values and brackets, to check, because this may run on the event loop.

If these have no fault, the hint mentions no place.
"""
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}"]|[^\s\[\]{},"]+', re.DOTALL)
_CUT_STRING: Final = b'"'
"""The token of a string that is truncated at the end."""
_OPEN_DIMENSION: Final = -1
_SHOWN_RANK: Final = 8
_SHOWN_SIZE: Final = 1 << 63


def hint(lists: bytes, name: str, shape: Sequence[int] | None, pairs: bool, depth: int, pointer: str) -> str | None:
    """Return a one-sentence hint about `lists`, the (possibly truncated) JSON values of tensor `name`; None if no fault
    is found.

    `depth` is the number of opening brackets. With `pairs`, each item is a list [re, im].
    """
    inner = (2,) if pairs else ()
    if shape is None:
        sizes = None
    elif depth <= 1 + pairs:
        sizes = [bounded_product(shape, 2**63), *inner]
    else:
        sizes = [*shape, *inner]
    found = _first_difference(lists, sizes)
    if found is None:
        return None
    way, what, wanted = found
    where = shorten(pointer + "".join(f"/{step}" for step in way))
    if pairs and sizes is not None and len(way) == len(sizes) - 1:
        return f"Write the item at {where} as a pair [re, im]."
    if what == "list":
        return f"Put one value at {where} in place of a list."
    if what == "value":
        return f"Put a list at {where} in place of one value."
    if shape is None:
        return f"Send {wanted} values in the list at {where}, as in the first of these lists; it has {what}."
    if not way and sizes is not None and len(sizes) == 1 + pairs:
        return hint_for_flat_list(name, shape, int(what))
    return f"Send {wanted} values in the list at {where}, {_expected_shape(shape)}; it has {what}."


def hint_for_flat_list(name: str, shape: Sequence[int], came: int) -> str:
    """Return a one-sentence hint for a flat list of `came` values."""
    wanted = items_text(shape).partition(" items")[0]
    return (
        f"Send {wanted} values in {name}, {_expected_shape(shape)}, or change the shape to match the {came} received."
    )


def _expected_shape(shape: Sequence[int]) -> str:
    short = len(shape) <= _SHOWN_RANK and all(size < _SHOWN_SIZE for size in shape)
    return f"as shape {list(shape)} requires" if short else "as the shape requires"


def end_of_sample(first: int, end: int) -> int:
    """Return the end of the part of a body's span [first, end) to pass to `hint`."""
    return min(end, first + _LOOKED_AT)


def _first_difference(lists: bytes, sizes: list[int] | None) -> tuple[list[int], str, int] | None:
    """Return the path to the first list that differs, its number of values, and the expected number.

    If a value is found instead of a list, or a list instead of a value, "value" or "list" replaces the number.
    """
    leaf = None if sizes is None else len(sizes)
    counts: list[int] = []
    wanted = [] if sizes is None else list(sizes)
    objects = 0
    for token in islice(_TOKEN.finditer(lists), _MOST_TOKENS):
        kind = token[0]
        if kind == _CUT_STRING:
            return None
        if kind == b"{":
            objects += 1
        elif kind == b"}":
            objects -= 1
        if objects:
            continue
        if kind == b"[":
            if leaf is not None and len(counts) == leaf:
                return counts, "list", 0
            counts.append(0)
            if len(wanted) < len(counts):
                wanted.append(_OPEN_DIMENSION)
            continue
        if kind == b"]":
            came = counts.pop()
            if leaf is None and came == 0:
                leaf = len(counts) + 1
            if wanted[len(counts)] == _OPEN_DIMENSION:
                wanted[len(counts)] = came
            if came != wanted[len(counts)]:
                return counts, str(came), wanted[len(counts)]
        else:
            if leaf is None:
                leaf = len(counts)
            if len(counts) != leaf:
                return counts, "value", 0
        if counts:
            counts[-1] += 1
    return None
