"""Checks the whole grammar of JSON and that no key is given twice, for a body that is refused: is it not JSON, or wrong
for another reason?

RFC 8259 to the letter, UTF-8 and the depth included, and a key given twice in one object is an error too.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.errors import GatherError
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.buffer_type import Buffer
from app.wire.json import malformed_hint
from app.wire.json.codec_constants import MAX_DEPTH
from app.wire.json.codec_functions import check

_BYTE: Final = np.dtype(np.uint8)
_LAST: Final = b"]}"
_SPACE: Final = b" \t\n\r"
_STEP: Final = 1 << 12
"""Bytes of which the white space is looked for at a time, from the end: a page."""
_NO_KEYS: Final[NDArray[np.int64]] = np.empty(0, np.int64)


class Fault(NamedTuple):
    """What makes a body no JSON document: `detail` says what, `hint` how to mend it."""

    detail: str
    hint: str


class FramingFault(GatherError):
    """A body that is not JSON or names a key twice: nothing comes before it, so nobody need look again."""


def check_framing(body: Buffer, memory: Memory = UNCOUNTED) -> None:
    """Raise malformed_request if the body is not JSON or names a key twice, and what charging raises."""
    found = fault(body, memory)
    if found is not None:
        raise FramingFault("malformed_request", found.detail, hint=found.hint)


def fault(body: Buffer, memory: Memory = UNCOUNTED, *, bare: bool = False) -> Fault | None:
    """What makes `body` no JSON document that names each key once, or None.

    `bare` takes NaN, Infinity and -Infinity for values. `memory` is charged with what is needed before it is taken.
    """
    end = _after_last(body)
    if end == 0 or body[end - 1] not in _LAST:
        # A text, number or name alone, or what is cut short: nothing else keeps a reader from running over the end.
        memory.charge(len(body))
        body = b"".join((body, b"]"))
    view = np.frombuffer(body, _BYTE)
    view.flags.writeable = False
    stack = np.empty(MAX_DEPTH + 1, np.int64)
    place, members = check.run(view, end, stack, _NO_KEYS, bare)
    if place >= 0:
        where = f"at byte {place}" if place < end else "at its end"
        detail = f"the body is not JSON in UTF-8, nested {MAX_DEPTH} deep at most: see {where}"
        return Fault(detail, malformed_hint.hint(body, place, end))
    if members < 2:
        return None
    memory.charge(9 * members)
    keys = np.empty(members, np.int64)
    check.run(view, end, stack, keys, bare)
    keys.sort()
    if (keys[1:] == keys[:-1]).any():
        return Fault("the body names a key twice in one object", malformed_hint.hint_for_repeated_key(body[:end]))
    return None


def _after_last(body: Buffer) -> int:
    """The place after the last byte that is no white space."""
    end = len(body)
    while end > 0:
        begin = max(0, end - _STEP)
        tail = bytes(body[begin:end]).rstrip(_SPACE)
        if tail:
            return begin + len(tail)
        end = begin
    return 0
