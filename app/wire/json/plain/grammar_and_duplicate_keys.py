"""The whole grammar of JSON, and keys given twice: the sibling of `app.wire.json.compiled.grammar_and_duplicate_keys`.

Regular expressions run over values that are not nested deeply; Python follows the lists and objects around those.
"""

from __future__ import annotations

import json
import re
from codecs import getincrementaldecoder
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.wire.json.codec_constants import MAX_DEPTH
from app.wire.json.plain.patterns import (
    ANY_STRING,
    BARE_NUMBER,
    CHARACTERS,
    CHARACTERS_OF_UTF_8,
    NAME,
    NUMBER,
    SPACE,
)

_NESTED: Final = 3
"""How many lists or objects in each other a regular expression runs over."""
_PORTION: Final = 1 << 16
_SPACE: Final = re.compile(SPACE)
_MANY_LISTS: Final = re.compile(rb"\[{%d,}+" % (_NESTED + 2))
_COUNTED: Final = re.compile(rb'(?:[^"]++|%b(?!%b:))*+(?:%b%b:|\Z)' % (ANY_STRING, SPACE, ANY_STRING, SPACE), re.DOTALL)
"""Each match ends with the next key and its colon; the last two with the text, one of them empty."""
_OBJECTS_AND_KEYS: Final = re.compile(
    rb'(?:[^"{}]++|%b(?!%b:))*+(?:(\{)|(\})|(%b)%b:|\Z)' % (ANY_STRING, SPACE, ANY_STRING, SPACE), re.DOTALL
)
_QUOTE, _BACKSLASH, _COMMA, _COLON, _OPENING_BRACKET, _OPENING_BRACE, _CLOSING_BRACKET, _CLOSING_BRACE = b'"\\,:[{]}'


class _Patterns(NamedTuple):
    """`value` is one value, `string` a string and `characters` what is in one; `in_list` and `in_object` run over
    values or members, each with the comma behind it.
    """

    value: re.Pattern[bytes]
    in_list: re.Pattern[bytes]
    in_object: re.Pattern[bytes]
    string: re.Pattern[bytes]
    characters: re.Pattern[bytes]


@cache
def _patterns(is_utf_8: bool, bare: bool, nested: int) -> _Patterns:
    """For values of so many lists or objects in each other."""
    characters = CHARACTERS if is_utf_8 else CHARACTERS_OF_UTF_8
    string = b'"' + characters + b'"'
    scalar = b"|".join((string, NUMBER, NAME, *((BARE_NUMBER,) if bare else ())))
    key = string + SPACE + b":" + SPACE
    value = b"(?:" + scalar + b")"
    for _ in range(nested):
        items = rb"(?:%b%b(?:,%b(?!\])|(?=\])))*+" % (value, SPACE, SPACE)
        members = rb"(?:%b%b%b(?:,%b(?!\})|(?=\})))*+" % (key, value, SPACE, SPACE)
        value = rb"(?:%b|\[%b%b\]|\{%b%b\})" % (scalar, SPACE, items, SPACE, members)
    comma = SPACE + b"," + SPACE
    patterns = value, b"(?:" + value + comma + b")*+", b"(?:" + key + value + comma + b")*+", string, characters
    return _Patterns(*map(re.compile, patterns))


def check(
    view: NDArray[np.uint8], end: int, stack: NDArray[np.int64], keys: NDArray[np.int64], bare: bool
) -> tuple[int, int]:
    """See `app.wire.json.compiled.grammar_and_duplicate_keys.check`.

    `members` is 0 where there is a fault. Where `keys` has room, the grammar has been checked before.
    """
    text = view.data[:end]
    if keys.size:
        _hash_keys(text, keys)
        return -1, keys.size
    place = _fault(text, _is_utf_8(text), bare)
    return place, 0 if place >= 0 else _COUNTED.subn(b"", text)[1] - 2


def _is_utf_8(text: memoryview) -> bool:
    decoder = getincrementaldecoder("utf-8")()
    try:
        for first in range(0, len(text), _PORTION):
            decoder.decode(text[first : first + _PORTION])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _after_space(text: memoryview, place: int) -> int:
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]


def _fault(text: memoryview, is_utf_8: bool, bare: bool) -> int:
    """The place of the first fault, or -1."""
    end = len(text)
    stack: list[int] = []
    place = _after_space(text, 0)
    while True:
        patterns = _patterns(is_utf_8, bare, _NESTED if len(stack) <= MAX_DEPTH - _NESTED else 0)
        many = _MANY_LISTS.match(text, place)
        if many is not None:
            count = min(many.end() - place - _NESTED - 1, MAX_DEPTH - len(stack))
            stack += [_CLOSING_BRACKET] * count
            place += count
        value = patterns.value.match(text, place)
        opened = value is None
        if value is not None:
            place = value.end()
        else:
            if place >= end:
                return place
            c = text[place]
            if c not in (_OPENING_BRACE, _OPENING_BRACKET):
                return _fault_of_scalar(text, place, patterns)
            if len(stack) == MAX_DEPTH:
                return place
            stack.append(_CLOSING_BRACE if c == _OPENING_BRACE else _CLOSING_BRACKET)
            place = _after_space(text, place + 1)
        while True:  # after a value, or after an opening bracket
            if not opened:
                place = _after_space(text, place)
            if not stack:
                return -1 if place == end else place
            if place >= end:
                return place
            c, closing = text[place], stack[-1]
            if c == closing:
                stack.pop()
                place += 1
                opened = False
                continue
            if not opened:
                if c != _COMMA:
                    return place
                place = _after_space(text, place + 1)
            if closing == _CLOSING_BRACKET:
                place = patterns.in_list.match(text, place).end()  # type: ignore[union-attr]
                break
            place = patterns.in_object.match(text, place).end()  # type: ignore[union-attr]
            key = patterns.string.match(text, place)
            if key is None:
                return _fault_of_scalar(text, place, patterns) if place < end and text[place] == _QUOTE else place
            place = _after_space(text, key.end())
            if place >= end or text[place] != _COLON:
                return place
            place = _after_space(text, place + 1)
            break


def _fault_of_scalar(text: memoryview, place: int, patterns: _Patterns) -> int:
    """Where the fault is in what begins at `place` and is no value: of a string within it, else at its beginning."""
    if text[place] != _QUOTE:
        return place
    place = patterns.characters.match(text, place + 1).end()  # type: ignore[union-attr]
    return place + (place < len(text) and text[place] == _BACKSLASH)


def _hash_keys(text: memoryview, keys: NDArray[np.int64]) -> None:
    """Store a hash of each key and the number of its object."""
    stack: list[int] = []
    objects = count = 0
    hashes: list[int] = []
    for match in _OBJECTS_AND_KEYS.finditer(text):
        what = match.lastindex
        if what == 1:
            objects += 1
            stack.append(objects)
        elif what == 2:
            stack.pop()
        elif what == 3:
            key = match[3]
            hashes.append(hash((stack[-1], json.loads(key) if b"\\" in key else key[1:-1].decode())))
            if len(hashes) == 1 << 12:
                keys[count : count + len(hashes)] = hashes
                count += len(hashes)
                hashes.clear()
    keys[count:] = hashes
