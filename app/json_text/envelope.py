"""The envelope of a JSON body: all of it but its arrays, which becomes Python objects.

Each array is replaced by its number, so that the field that held it says which one it was.
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
"""Most bytes of an envelope, since it becomes Python objects, on the event loop: orjson takes twelve bytes for each."""
MAX_SPACED_BYTES: Final = 1 << 20
"""The same with its white space, of which nothing is made."""
_READ_EXACTLY: Final = 5
"""Bytes that a byte of an envelope with much white space takes: itself, and as text, of which one character is wide."""
_SPACE: Final = b" \t\r\n"
_NESTED: Final = (dict, list)
MAX_FEATURE_BYTES: Final = 1 << 9
"""Bytes that a feature may take beside its arrays, on average; a name has at most 128, its other members 250."""
OBJECT_BYTES: Final = 32
"""Bytes that a byte beside the arrays takes as Python objects: a feature of 60 bytes is eight of them."""
PLACE_BYTES: Final = 24 + 176
"""Bytes that the place of an array takes: three words, and a list of three integers."""
MOST_ARRAYS: Final = 16
"""Arrays that the envelope of an inference request may have had."""
_NUMBERS: Final = tuple(b"%d " % number for number in range(1 << 10))
_CHANGED: Final = re.compile(rb"[:,\[][ \t\r\n]*+(?:-0[ \t\r\n,\]}]|-?+[0-9.]{17}|-?+[0-9.]++[eE])")
"""A number that orjson may change: -0, of which it makes the integer 0, one of more than SHORT_DIGITS digits, or one
with an exponent. It may stand in a text."""


def cut_arrays(
    body: Buffer, places: Sequence[ArrayPlace], arrays: int, what: str, memory: Memory, most: int = MAX_BYTES
) -> bytes:
    """The envelope: `body`, in which number i stands for array i of `arrays`, which are at these `places`.

    Raises limit_exceeded if all but `what` has more than `most` bytes.
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
    """The value of the envelope `text` of `body`.

    Raises what `check_grammar` raises: it is called if the envelope is no JSON, and may let NaN and infinities pass.
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
    """How many members all objects within `value` have."""
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
    """Raises limit_exceeded if an envelope, in `pieces`, is too large; white space hardly counts.

    `memory` is charged with what a large one takes to be counted and read: each byte, and a character of text for it.
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
