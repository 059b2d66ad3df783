"""Writes framed strings as a JSON list, in compiled code: see `app.json_text.write_elements`."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.compilation.decorators import entry
from app.compilation.intrinsics import (
    Bytes,
    Integers,
    address_of,
    count_trailing_zeros,
    int64,
    load_u8,
    load_u64,
    store_u8,
    store_u16,
    store_u64,
)
from app.json_text.compiled.characters import escape_marks
from app.tensors.compiled_string_frames import frame_size
from app.tensors.string_frames import HEAD, ROOM

_ENDLESS: Final = 2**62
_OPENING, _CLOSING, _QUOTE, _QUOTE_COMMA = 0x5B, 0x5D, 0x22, 0x2C22


def _texts() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return each byte's JSON text, as the bytes of a word, and the length of the text."""
    texts = [bytes([c]) if c >= 32 else b"\\u%04x" % c for c in range(256)]
    for c, letter in zip(b'"\\\b\t\n\f\r', b'"\\btnfr', strict=True):
        texts[c] = bytes([ord("\\"), letter])
    words = [int.from_bytes(text, "little") for text in texts]
    return np.array(words, np.int64), np.array([len(text) for text in texts], np.int64)


_TEXTS, _LENGTHS = _texts()


@entry
def write_strings(octets: Bytes, starts: Integers, out: Bytes) -> int:
    """See `app.json_text.write_elements.write_strings`."""
    base, size = address_of(octets), octets.size
    limit = base + size
    write = out.size > 0
    first = address_of(out)
    target = first
    end = first + out.size - ROOM if write else int64(_ENDLESS)  # last address at which eight bytes may be stored
    if target > end:
        return -1
    if write:
        store_u8(target, _OPENING)
    target += 1
    for start in starts:
        length = frame_size(base, size, start)
        if length < 0 or target > end:
            return -1
        place, stop = base + start + HEAD, base + start + length
        if write:
            store_u8(target, _QUOTE)
        target += 1
        while place < stop:
            if target > end:
                return -1
            if place + 8 <= limit:
                word = load_u64(place)
                marks = escape_marks(word)
                if write:
                    store_u64(target, word)
                if marks == 0 and place + 8 <= stop:
                    place += 8
                    target += 8
                    continue
                plain = min(count_trailing_zeros(marks) >> 3, stop - place)
                place += plain
                target += plain
                if place == stop:
                    break
                if target > end:
                    return -1
            c = load_u8(place)
            if write:
                store_u64(target, _TEXTS[c])
            place += 1
            target += _LENGTHS[c]
        if target > end:
            return -1
        if write:
            store_u16(target, _QUOTE_COMMA)
        target += 2
    if starts.size > 0:
        target -= 1
    if target >= end:
        return -1
    if write:
        store_u8(target, _CLOSING)
    return target + 1 - first
