"""Finds the arrays of a JSON body without reading them.

A scanner walks the body outside its arrays. It looks for the members that hold arrays, at their depth: `values` and
`base64` of a tensor in a gather or in a feature of a lookup, and `data` of an input in an inference request. The arrays
are cut out, a library reads the rest (`envelope`), and `read_elements` reads the arrays. The scanner checks only what
it needs and accepts much that is not JSON. The readers of the individual parts reject such text, and `grammar`
distinguishes invalid JSON from other faults.

This is the plain scanner, which is used until the compiled one is ready.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.compilation.until_compiled import UntilCompiled
from app.errors import GatherError
from app.json_text.constants import (
    ARRAY_KEYS,
    ESCAPED,
    MAX_DEPTH,
    MOST_ARRAYS,
    QUOTED,
    SCALAR,
    TENSOR_DEPTH,
)

ArrayPlace: TypeAlias = tuple[int, int, int]
"""The first byte of an array, its end and its kind."""
_MOST_WHILE_COMPILING: Final = 1 << 20
"""Maximum size of a body while the compiled readers are being compiled, which takes about ten seconds."""
_RETRY_AFTER_S: Final = 10
_SPACE: Final = rb"[ \t\n\r]*+"
_STRING: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_MARK: Final = re.compile(rb'%b(%b:%b)?+|[\[\]{}"]' % (_STRING.pattern, _SPACE, _SPACE), re.DOTALL)
"""A string (with the colon after it if it is a key), a bracket or brace, or the quote of an unterminated string."""
_OPENINGS: Final = re.compile(rb"(?:\[%b)*+" % _SPACE)
_SCALAR: Final = re.compile(rb"[^ \t\n\r,\]}]*+")


class FoundArrays(NamedTuple):
    """The arrays of a body, with facts about the rest.

    `closed` is False if strings or brackets are not closed; then the other fields are undefined. `members` is the
    number of members of all objects outside the arrays, and `arrays` is the number of arrays. `places` holds the arrays
    for which there was room.
    """

    closed: bool
    members: int
    arrays: int
    places: Sequence[ArrayPlace]


def find_arrays(view: NDArray[np.uint8], depth: int, most: int) -> FoundArrays:
    """Find the arrays of a body, which are members at depth `depth`. Returns the places of at most `most` arrays."""
    words = np.empty((most, 3), np.int64)
    closed, members, arrays = scan_arrays.run(view, depth, words.reshape(-1))
    return FoundArrays(closed, members, arrays, words[: min(arrays, most)].tolist())


@UntilCompiled
def scan_tensors(view: NDArray[np.uint8]) -> tuple[bool, int, int, Sequence[ArrayPlace]]:
    """Return the fields of `FoundArrays` for a gather or a scatter, with MOST_ARRAYS places. Unused places are zero."""
    closed, members, arrays, places = _scan(view, TENSOR_DEPTH, MOST_ARRAYS)
    return closed, members, min(arrays, MOST_ARRAYS), (*places, *[(0, 0, 0)] * (MOST_ARRAYS - len(places)))


@UntilCompiled
def scan_arrays(view: NDArray[np.uint8], depth: int, places: NDArray[np.int64]) -> tuple[bool, int, int]:
    """Return the first three fields of `FoundArrays` for any body, and write three words per array to `places`.

    There may be any number of arrays; in an inference request, even ignored objects may contain arrays.
    """
    found = _scan(view, depth, places.size // 3)
    places[: 3 * len(found.places)] = np.array(found.places, np.int64).reshape(-1)
    return found[:3]


class _UnclosedText(Exception):
    """A string is not closed, or lists and objects are nested too deeply."""


def _scan(view: NDArray[np.uint8], level: int, most: int) -> FoundArrays:
    """Find the arrays in members at depth `level`. Returns the places of at most `most` arrays.

    Raises not_ready for a long body if the compiled readers will be ready soon.
    """
    body, keys = view.data, ARRAY_KEYS[level]
    if UntilCompiled.are_due and len(body) > _MOST_WHILE_COMPILING:
        detail = f"what reads JSON of more than {_MOST_WHILE_COMPILING} bytes is being compiled"
        raise GatherError("not_ready", detail, retry_after=_RETRY_AFTER_S)
    places: list[ArrayPlace] = []
    members = count = begin = kind = depth = place = 0
    is_inside = False
    try:
        while (mark := _MARK.search(body, place)) is not None:
            place = mark.end()
            depth = _depth_after(mark, depth)
            if is_inside:
                is_inside = depth != level
                if not is_inside:
                    places.append((begin, place, kind))
                continue
            if not mark[1]:
                continue
            members += 1
            if depth != level or place == len(body) or _key(body[mark.start() : mark.start(1)]) not in keys:
                continue
            count += 1
            if count > most:
                continue
            begin = place
            if body[place] in b"[{":
                is_inside, kind = True, _OPENINGS.match(body, place)[0].count(b"[")  # type: ignore[index]
            else:
                place, kind = _skip_scalar(body, place)
                places.append((begin, place, kind))
    except _UnclosedText:
        is_inside = True
    return FoundArrays(not is_inside, members, count, places)


def _depth_after(mark: re.Match[bytes], depth: int) -> int:
    """Return the depth after a match of _MARK, given the `depth` before it. Raises _UnclosedText."""
    c = mark.string[mark.start()]
    if c == ord('"') and mark.end() == mark.start() + 1:
        raise _UnclosedText
    depth += (c in b"[{") - (c in b"]}")
    if depth > MAX_DEPTH:
        raise _UnclosedText
    return depth


def _skip_scalar(body: memoryview, place: int) -> tuple[int, int]:
    """Return the place after the string, number or name at `place`, and its kind. Raises _UnclosedText."""
    if body[place] != ord('"'):
        return _SCALAR.match(body, place).end(), SCALAR  # type: ignore[union-attr]
    string = _STRING.match(body, place)
    if string is None:
        raise _UnclosedText
    return string.end(), ESCAPED if b"\\" in string[0] else QUOTED


def _key(text: memoryview) -> str | None:
    """Decode the key in a JSON string. Returns None if it is not a valid string."""
    try:
        key: str = json.loads(str(text, "utf-8"))
    except ValueError:
        return None
    return key
