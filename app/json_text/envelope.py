"""The envelope of a JSON body: the body without its arrays, which becomes Python objects.

Each array is replaced by its number, so the member that held it names the array.
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
"""Most bytes of an envelope. It becomes Python objects on the event loop: orjson takes twelve bytes for each byte."""
MAX_SPACED_BYTES: Final = 1 << 20
"""The same limit including white space, which becomes no objects."""
_READ_EXACTLY: Final = 5
"""Bytes of memory per byte of an envelope with much white space: the byte, and its character in a text with wide
characters.
"""
_SPACE: Final = b" \t\r\n"
_NESTED: Final = (dict, list)
MAX_FEATURE_BYTES: Final = 1 << 9
"""Most bytes of a feature besides its arrays, on average; a name has at most 128, its other members 250."""
OBJECT_BYTES: Final = 32
"""Bytes of Python objects per byte besides the arrays: a feature of 60 bytes becomes eight objects."""
PLACE_BYTES: Final = 24 + 176
"""Bytes of memory per array place: three words, and a list of three integers."""
MOST_ARRAYS: Final = 16
"""Most arrays in the envelope of an inference request."""
_NUMBERS: Final = tuple(b"%d " % number for number in range(1 << 10))
_CHANGED: Final = re.compile(rb"[:,\[][ \t\r\n]*+(?:-0[ \t\r\n,\]}]|-?+[0-9.]{17}|-?+[0-9.]++[eE])")
"""A number that orjson may change: -0, which becomes the integer 0, and numbers of more than SHORT_DIGITS digits or
with an exponent. It may be within a text.
"""


def cut_arrays(
    body: Buffer, places: Sequence[ArrayPlace], arrays: int, what: str, memory: Memory, most: int = MAX_BYTES
) -> bytes:
    """The envelope: `body` with number i in place of array i of `arrays`, which are at these `places`.

    Raises limit_exceeded if everything except `what` has more than `most` bytes.
    """
    if arrays == 2 and len(body) <= MAX_BYTES:  # as most requests have them: at once, in a third of the time
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

    Raises what `check_grammar` raises; that is called if the envelope is not JSON, and may accept NaN and infinities.
    """
    if len(text) <= most and _CHANGED.search(text) is None:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            pass  # a lone surrogate, a bare NaN, or no JSON
    try:
        return lossless_json.loads(text.decode())
    except ValueError:
        check_grammar(body, memory)
    return lossless_json.loads(text.decode(), bare=True)


def count_members(value: Any) -> int:
    """Number of members of all objects within `value`."""
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
    """Raise limit_exceeded if an envelope, in `pieces`, is too large; white space hardly counts.

    `memory` is charged for counting and reading a large one: each byte, and a character of text for it.
    """
    size = sum(map(len, pieces))
    if size > MAX_SPACED_BYTES:
        most = MAX_SPACED_BYTES
    elif size > most:
        memory.charge(_READ_EXACTLY * size)
        size = sum(len(bytes(piece).translate(None, _SPACE)) for piece in pieces)
    if size > most:
        detail = f"all but {what} takes {size} bytes of at most {most}"
        raise GatherError("limit_exceeded", detail, facts={"limit": "fields_bytes", "maximum": most})
