"""Check a refused body against the full grammar of JSON, and for repeated keys.

The check determines whether the body is invalid JSON or has another fault. The rules are exactly those of RFC 8259,
including UTF-8, plus a depth limit. A repeated key in one object is also an error.

`check` is the plain checker, which is used until the compiled one is ready. Thanks to the compiled checker, one invalid
element does not force a large array to be converted to Python objects.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.compilation.until_compiled import UntilCompiled
from app.errors import LONG_TEXT, GatherError, Place
from app.json_text import lossless_json, malformed_hint
from app.json_text.constants import MAX_DEPTH
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.buffer_type import Buffer

_BYTE: Final = np.dtype(np.uint8)
_LAST: Final = b"]}"
_SPACE: Final = b" \t\n\r"
_STEP: Final = 1 << 12
"""Number of bytes (a page) to search for trailing white space at a time."""
_AFTER_SPACE: Final = re.compile(rb"[ \t\n\r]*+")
_NUMBER: Final = rb"-?+(?:0(?![0-9])|[1-9][0-9]*+)(?:\.[0-9]++|(?!\.))(?:[eE][+-]?+[0-9]++|(?![eE]))"
_NAME_OR_NUMBER: Final = re.compile(rb"true|false|null|%b" % _NUMBER)
_BARE_TOO: Final = re.compile(rb"true|false|null|NaN|-?Infinity|%b" % _NUMBER)
_CHARACTERS: Final = re.compile(rb'[^"\\\x00-\x1f]*+')
_ESCAPE: Final = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})')
_NO_KEYS: Final[NDArray[np.int64]] = np.empty(0, np.int64)


class FramingFault(GatherError):
    """A body is not JSON or repeats a key. This error takes precedence, so nothing else needs to be checked."""


def check_framing(body: Buffer, memory: Memory = UNCOUNTED, *, bare: bool = False) -> None:
    """Raise FramingFault if the body is not JSON or repeats a key. May also raise any error of charging.

    `bare` accepts NaN, Infinity and -Infinity as values. `memory` is charged before memory is allocated.
    """
    end = _end_of_text(body)
    if end == 0 or body[end - 1] not in _LAST:
        # Add a delimiter, which stops readers at the end of a lone string, number or name, or of a truncated body.
        memory.charge(len(body))
        body = b"".join((body, b"]"))
    view = np.frombuffer(body, _BYTE)
    view.flags.writeable = False
    stack = np.empty(MAX_DEPTH + 1, np.int64)
    place, members = check.run(view, end, stack, _NO_KEYS, bare)
    if place >= 0:
        where = f"at byte {place}" if place < end else "at its end"
        detail = f"the body is not JSON in UTF-8, nested at most {MAX_DEPTH} levels deep; the error is {where}"
        places = (Place("", offset=place),) if end > LONG_TEXT else ()
        raise FramingFault("malformed_request", detail, places=places, hint=malformed_hint.hint(body, place, end))
    if members < 2:
        return
    memory.charge(9 * members)
    keys = np.empty(members, np.int64)
    check.run(view, end, stack, keys, bare)
    keys.sort()
    if (keys[1:] == keys[:-1]).any():
        hint = malformed_hint.hint_for_repeated_key(body[:end])
        raise FramingFault("malformed_request", "the body has a key twice in one object", hint=hint)


def value_of(text: str, memory: Memory = UNCOUNTED) -> Any:
    """Parse a JSON text within a request. May raise any error of `check_framing`."""
    check_framing(text.encode("utf-8", "surrogatepass"), memory)
    return lossless_json.loads(text)


def _end_of_text(body: Buffer) -> int:
    """Return the offset after the last byte that is not white space."""
    end = len(body)
    while end > 0:
        begin = max(0, end - _STEP)
        tail = bytes(body[begin:end]).rstrip(_SPACE)
        if tail:
            return begin + len(tail)
        end = begin
    return 0


@UntilCompiled
def check(
    view: NDArray[np.uint8], end: int, stack: NDArray[np.int64], keys: NDArray[np.int64], bare: bool
) -> tuple[int, int]:
    """Check a document. Returns the place of the first fault, or -1, and the number of members of all objects.

    If `keys` is not empty, writes a hash of each key and its object to `keys`. The document is the first `end` bytes of
    `view`. It must end with a closing bracket or brace, or be followed by a byte that is not part of a number, name or
    string, so that readers stop there. `stack` is scratch memory.
    """
    try:
        found = _keys(view[:end].tobytes(), bare)
    except _GrammarFault as fault:
        return fault.place, 0
    keys[:] = [hash(one) for one in found[: keys.size]]
    return -1, len(found)


class _GrammarFault(Exception):
    """A text is not JSON; `place` is the position of the fault."""

    def __init__(self, place: int) -> None:
        super().__init__(place)
        self.place = place


def _keys(text: bytes, bare: bool) -> list[tuple[int, str]]:
    """Return the key of each member, with the index of its object. Raises _GrammarFault."""
    keys: list[tuple[int, str]] = []
    open_ones: list[tuple[bytes, int]] = []
    """The closing character and the number of each open list and object."""
    count, place = 0, _skip_space(text, 0)
    while True:
        opening = text[place : place + 1]
        is_first = opening in (b"[", b"{")
        if is_first:
            if len(open_ones) == MAX_DEPTH:
                raise _GrammarFault(place)
            count += 1
            open_ones.append((b"]" if opening == b"[" else b"}", count))
            place = _skip_space(text, place + 1)
        else:
            place = _skip_space(text, _skip_scalar(text, place, bare))
        while open_ones and text.startswith(open_ones[-1][0], place):
            open_ones.pop()
            is_first = False
            place = _skip_space(text, place + 1)
        if not open_ones:
            if place < len(text):
                raise _GrammarFault(place)
            return keys
        if not is_first:
            place = _skip_mark(b",", text, place)
        closing, number = open_ones[-1]
        if closing == b"}":
            end = _skip_string(text, place)
            keys.append((number, json.loads(text[place:end])))
            place = _skip_mark(b":", text, _skip_space(text, end))


def _skip_space(text: bytes, place: int) -> int:
    space = _AFTER_SPACE.match(text, place)
    assert space is not None, "it may be empty"
    return space.end()


def _skip_mark(mark: bytes, text: bytes, place: int) -> int:
    """Return the place after a comma or a colon and any white space that follows. Raises _GrammarFault."""
    if not text.startswith(mark, place):
        raise _GrammarFault(place)
    return _skip_space(text, place + 1)


def _skip_scalar(text: bytes, place: int, bare: bool) -> int:
    """Return the place after a string, a number or a name. Raises _GrammarFault."""
    if text.startswith(b'"', place):
        return _skip_string(text, place)
    found = (_BARE_TOO if bare else _NAME_OR_NUMBER).match(text, place)
    if found is None:
        raise _GrammarFault(place)
    return found.end()


def _skip_string(text: bytes, place: int) -> int:
    """Return the place after a string. Raises _GrammarFault."""
    if not text.startswith(b'"', place):
        raise _GrammarFault(place)
    place += 1
    while True:
        characters = _CHARACTERS.match(text, place)
        assert characters is not None, "there may be none"
        try:
            characters[0].decode()
        except UnicodeDecodeError as error:
            raise _GrammarFault(place + error.start) from None
        place = characters.end()
        if text.startswith(b'"', place):
            return place + 1
        escape = _ESCAPE.match(text, place)
        if escape is None:
            raise _GrammarFault(place + text.startswith(b"\\", place))
        place = escape.end()
