"""Where the arrays of a JSON body are: the sibling of `app.wire.json.compiled.find_arrays`, where more is said.

Regular expressions run over all in which nothing begins or ends that is to be known; Python sees the rest.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.wire.json.codec_constants import (
    ESCAPED,
    FEATURE_DEPTH,
    INPUT_DEPTH,
    MAX_DEPTH,
    MOST_ARRAYS,
    OTHER_NUMBERS,
    PLAIN_DIGITS,
    PLAIN_NUMBERS,
    QUOTED,
    SCALAR,
    SHORT_DIGITS,
    SHORT_FRACTIONS,
    TENSOR_DEPTH,
)
from app.wire.json.plain.patterns import ANY_STRING, SPACE

_NESTED: Final = 3
"""How many lists or objects in each other a regular expression runs over."""
_STRING: Final = re.compile(ANY_STRING, re.DOTALL)
_SPACE: Final = re.compile(SPACE)
_COLON: Final = re.compile(SPACE + b":" + SPACE)
_SCALAR: Final = re.compile(rb"[^ \t\n\r,\]}]*+")
_OPENINGS: Final = re.compile(rb"(?:\[" + SPACE + rb")++")
_MEMBERS: Final = re.compile(
    rb'(?:[^"]++|%b(?!%b:))*+(?:%b%b(:)|\Z)' % (ANY_STRING, SPACE, ANY_STRING, SPACE), re.DOTALL
)
"""Each match ends with the next key and its colon, which is the group; the last one with the text."""
_NO_PLACE: Final = (0, 0, 0)
_NUMBER: Final = re.compile(rb"([0-9]++)(?:\.([0-9]*+))?+([eE])?")
_PLAIN: Final = rb"[0-9]{1,%d}+(?![0-9.eE])" % PLAIN_DIGITS
_SHORT: Final = rb"(?=[0-9.]{2,%d}+(?![0-9.]))[0-9]++\.[0-9]*+(?![eE])" % (SHORT_DIGITS + 1)
_RUN_OVER: Final = (rb'[^"\[\]{}0-9]++|' + _PLAIN, rb'[^"\[\]{}0-9]++|%b|%b' % (_PLAIN, _SHORT), rb'[^"\[\]{}]++')
"""What stands between names, texts and brackets, by how the numbers in it are written."""
_Place = tuple[int, int, int]
_QUOTE, _OPENING_BRACKET, _OPENING_BRACE, _CLOSING_BRACKET, _CLOSING_BRACE = b'"[{]}'
_ZERO, _NINE = b"09"


@cache
def _run(keys: bool, numbers: int, nested: bool) -> re.Pattern[bytes]:
    """Runs over scalars and what stands between them, with or without `keys`, and numbers written as `numbers` says or
    plainer; `nested` ones too, lists and objects in which there is nothing else. It stops before all else, and before a
    string that does not close.
    """
    flat = _RUN_OVER[numbers] + b"|" + (ANY_STRING if keys else rb"%b(?!%b:)" % (ANY_STRING, SPACE))
    pattern = flat
    for _ in range(_NESTED if nested else 0):
        pattern = rb"%b|[\[{](?:%b)*+[\]}]" % (flat, pattern)
    return re.compile(rb"(?:%b)*+" % pattern, re.DOTALL)


def scan_tensors(view: NDArray[np.uint8]) -> tuple[bool, int, int, int, tuple[_Place, _Place, _Place, _Place]]:
    """See `app.wire.json.compiled.find_arrays.scan_tensors`."""
    places: list[_Place] = []
    closed, members, numbers, count = _scan(view.data, TENSOR_DEPTH, ("values", "base64"), places, MOST_ARRAYS)
    first, second, third, fourth = places + [_NO_PLACE] * (MOST_ARRAYS - len(places))
    return closed, members, numbers, min(count, MOST_ARRAYS), (first, second, third, fourth)


def scan_inputs(view: NDArray[np.uint8], places: NDArray[np.int64]) -> tuple[bool, int, int, int]:
    """See `app.wire.json.compiled.find_arrays.scan_inputs`."""
    return _scan_any(view, INPUT_DEPTH, ("data",), places)


def scan_features(view: NDArray[np.uint8], places: NDArray[np.int64]) -> tuple[bool, int, int, int]:
    """See `app.wire.json.compiled.find_arrays.scan_features`."""
    return _scan_any(view, FEATURE_DEPTH, ("values", "base64"), places)


def _scan_any(
    view: NDArray[np.uint8], level: int, keys: tuple[str, ...], places: NDArray[np.int64]
) -> tuple[bool, int, int, int]:
    found: list[_Place] = []
    outcome = _scan(view.data, level, keys, found, places.size // 3)
    places[: 3 * len(found)] = np.array(found, np.int64).reshape(-1)
    return outcome


def _scan(
    body: memoryview, level: int, keys: tuple[str, ...], places: list[_Place], most: int
) -> tuple[bool, int, int, int]:
    """(closed, members, kind of numbers, count) of the arrays that members of depth `level` named by a key hold.

    As many as `most` are added to `places`.
    """
    end = len(body)
    numbers = PLAIN_NUMBERS
    place = depth = members = count = 0
    while True:
        begin = place
        place = _run(depth > level, numbers, depth <= MAX_DEPTH - _NESTED).match(body, place).end()  # type: ignore[union-attr]
        if depth > level and place > begin:
            members += _count_members(body[begin:place])
        if place >= end:
            return True, members, numbers, count
        c = body[place]
        if _ZERO <= c <= _NINE:
            number = _NUMBER.match(body, place)
            assert number is not None, "a digit is one"
            numbers = max(numbers, _how_written(number))
            place = number.end()
        elif c in (_OPENING_BRACKET, _OPENING_BRACE):
            depth += 1
            place += 1
            if depth > MAX_DEPTH:
                return False, members, numbers, count
        elif c in (_CLOSING_BRACKET, _CLOSING_BRACE):
            depth -= 1
            place += 1
        else:
            string = _STRING.match(body, place)
            if string is None:
                return False, members, numbers, count
            colon = _COLON.match(body, string.end())
            assert colon is not None, "the run goes over strings that are no keys"
            members += 1
            place = colon.end()
            if depth != level or place == end or not _is_one_of(string[0], keys):
                continue
            count += 1
            if count > most:
                continue
            first = place
            place, kind = _skip_value(body, place, depth)
            if place < 0:
                return False, members, numbers, count
            places.append((first, place, kind))


def _how_written(number: re.Match[bytes]) -> int:
    """How a number is written that `_NUMBER` has matched: see `codec_constants`."""
    whole, fraction, exponent = number.groups()
    if exponent is not None:
        return OTHER_NUMBERS
    if fraction is None:
        return PLAIN_NUMBERS if len(whole) <= PLAIN_DIGITS else OTHER_NUMBERS
    return SHORT_FRACTIONS if len(whole) + len(fraction) <= SHORT_DIGITS else OTHER_NUMBERS


def _count_members(text: memoryview) -> int:
    """How many keys there are in a text whose strings are all closed; those that lists and objects contain too."""
    return _MEMBERS.findall(text).count(b":")


def _is_one_of(key: bytes, keys: tuple[str, ...]) -> bool:
    """Whether a key with its quotes, escaped or not, is one of `keys`."""
    if b"\\" not in key:
        return key[1:-1] in map(str.encode, keys)
    try:
        return json.loads(key) in keys
    except ValueError:
        return False


def _skip_value(body: memoryview, place: int, depth: int) -> tuple[int, int]:
    """(the place after the value that begins at `place`, -1 where it does not close; its kind)."""
    c = body[place]
    if c == _QUOTE:
        string = _STRING.match(body, place)
        if string is None:
            return -1, QUOTED
        return string.end(), ESCAPED if b"\\" in string[0] else QUOTED
    if c in (_OPENING_BRACKET, _OPENING_BRACE):
        openings = _OPENINGS.match(body, place)
        return _skip_nested(body, place, depth), openings[0].count(b"[") if openings else SCALAR
    scalar = _SCALAR.match(body, place)
    assert scalar is not None, "it may be empty"
    return scalar.end(), SCALAR


def _skip_nested(body: memoryview, place: int, depth: int) -> int:
    """`place` is at an opening bracket or brace, `depth` levels deep: the place after the one that closes it, or -1."""
    outside, end = depth, len(body)
    runs = [_run(True, OTHER_NUMBERS, nested).match for nested in (False, True)]
    while place < end and (c := body[place]) != _QUOTE:
        place += 1
        if c in (_OPENING_BRACKET, _OPENING_BRACE):
            depth += 1
            if depth > MAX_DEPTH:
                return -1
        else:
            depth -= 1
            if depth == outside:
                return place
        place = runs[depth <= MAX_DEPTH - _NESTED](body, place).end()  # type: ignore[union-attr]
    return -1
