"""The envelope of a JSON body: the body without its arrays. The envelope is parsed into Python objects.

Each array is replaced by its index, so that the member's value identifies the array.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from app.errors import GatherError
from app.json_text import lossless_json
from app.json_text.find_arrays import ArrayPlace
from app.memory.budget import Memory
from app.tensors.buffer_type import Buffer

MAX_BYTES: Final = 1 << 15
"""Maximum size of an envelope. It is parsed on the event loop, and orjson takes twelve bytes of objects per byte."""
MAX_SPACED_BYTES: Final = 1 << 20
"""Maximum size of an envelope including white space, which does not become objects."""
_READ_EXACTLY: Final = 5
"""Bytes of memory per byte of an envelope with much white space: the byte itself, and up to four for its character in a
string.
"""
_SPACE: Final = b" \t\r\n"
_NESTED: Final = (dict, list)
MAX_FEATURE_BYTES: Final = 1 << 9
"""Maximum average size of a feature without its arrays; a name has at most 128 bytes, and the other members have at
most 250.
"""
OBJECT_BYTES: Final = 32
"""Bytes of Python objects per byte outside the arrays: a feature of 60 bytes becomes eight objects."""
PLACE_BYTES: Final = 24 + 176
"""Bytes of memory per array place: three words, and a list of three integers."""
MOST_ARRAYS: Final = 16
"""Maximum number of arrays in an inference request."""
_NUMBERS: Final = tuple(b"%d " % number for number in range(1 << 10))
_CHANGED: Final = re.compile(rb"[:,\[][ \t\r\n]*+(?:-0[ \t\r\n,\]}]|-?+[0-9.]{17}|-?+[0-9.]++[eE])")
"""Matches a number that orjson may change: -0, which becomes the integer 0, and numbers with more than SHORT_DIGITS
digits or with an exponent. May also match inside a string.
"""


def cut_arrays(
    body: Buffer, places: Sequence[ArrayPlace], arrays: int, what: str, memory: Memory, most: int = MAX_BYTES
) -> bytes:
    """Return the envelope: `body` with the number i instead of array i. Only the first `arrays` of `places` are used.

    Raises limit_exceeded if everything except `what` has more than `most` bytes.
    """
    if arrays == 2 and len(body) <= MAX_BYTES:  # a shortcut for the common case; it takes a third of the time
        (first, after, _), (second, end, _) = places[0], places[1]
        return b"".join((body[:first], _NUMBERS[0], body[after:second], _NUMBERS[1], body[end:]))
    whole = body if len(body) <= MAX_BYTES else memoryview(body)
    pieces: list[Buffer] = []
    end = 0
    for number, (first, after, _) in enumerate(places[:arrays]):
        pieces += (whole[end:first], _NUMBERS[number] if number < len(_NUMBERS) else b"%d " % number)
        end = after
    pieces.append(whole[end:])
    if len(body) > MAX_BYTES:
        _check_size(pieces[::2], what, memory, most)
    return b"".join(pieces)


def parse_envelope(
    text: bytes,
    body: Buffer,
    check_grammar: Callable[[Buffer, Memory], None],
    memory: Memory,
    most: int = MAX_BYTES,
) -> Any:
    """Parse the envelope `text` of `body`.

    If the envelope is not JSON, calls `check_grammar`, which raises an error, or accepts NaN and infinities.
    """
    if len(text) <= most and _CHANGED.search(text) is None:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass  # a lone surrogate, an unquoted NaN, or invalid JSON
    try:
        return lossless_json.loads(text.decode())
    except ValueError:
        check_grammar(body, memory)
    return lossless_json.loads(text.decode(), bare=True)


def count_members(value: Any) -> int:
    """Count the members of all objects within `value`."""
    count, level = 0, [value] if type(value) in _NESTED else []
    while level:
        count += sum([len(one) for one in level if type(one) is dict])
        level = [
            each
            for one in level
            for each in (one.values() if type(one) is dict else one)
            if type(each) in _NESTED and each
        ]
    return count


def _check_size(pieces: Sequence[Buffer], what: str, memory: Memory, most: int) -> None:
    """Raise limit_exceeded if an envelope, given in `pieces`, is too large. White space has a separate, higher limit.

    For a large envelope, charges `memory` for counting and parsing.
    """
    size = sum(map(len, pieces))
    if size > MAX_SPACED_BYTES:
        most = MAX_SPACED_BYTES
    elif size > most:
        memory.charge(_READ_EXACTLY * size)
        size = sum(len(bytes(piece).translate(None, _SPACE)) for piece in pieces)
    if size > most:
        detail = f"everything except {what} has {size} bytes; the limit is {most}"
        raise GatherError("limit_exceeded", detail, facts={"limit": "fields_bytes", "maximum": most})
