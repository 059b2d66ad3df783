"""Strings on their way from bytes to a tensor: first all as UTF-8 with a byte between them, then Python's objects.

That the byte SEPARATOR, which no UTF-8 has, stands behind each lets one call of `str.split` make very many of them.
Objects are made with the interpreter locked, so that they are made in portions: other threads go on in between.
"""

# Comparisons are spelt out, since that is what compiles well.
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.llvm_intrinsics import (
    Bytes,
    address_of,
    count_trailing_zeros,
    entry,
    int64,
    load_u8,
    load_u32,
    load_u64,
    store_u8,
    store_u64,
)
from app.tensors.packed_strings import OBJECT_BYTES
from app.wire.json.find_arrays import character
from app.wire.json.parse_number_arrays import SEPARATOR

PORTION: Final = 1 << 16
"""Bytes of text that are made into strings without a pause: some hundred microseconds."""
_DECODED: Final = SEPARATOR.decode("utf-8", "surrogateescape")
_LATIN: Final = SEPARATOR.decode("latin-1")
_LONG: Final = 1 << 12
_TOPS: Final = -0x7F7F7F7F7F7F7F80


@entry
def framed(raw: Bytes, wanted: int) -> tuple[int, int]:
    """(strings, fault) of the inference protocol's BYTES framing, read until there are more than `wanted`.

    The fault is 0, 1 where the length before a string ends early, or 2 where the string does.
    """
    base, size = address_of(raw), raw.size
    place = int64(0)
    count = int64(0)
    while place < size:
        if place + 4 > size:
            return count, 1
        place += 4 + load_u32(base + place)
        if place > size:
            return count, 2
        count += 1
        if count > wanted:
            break
    return count, 0


@entry
def separated(raw: Bytes, out: Bytes) -> tuple[int, int, bool]:
    """(used, strings, fine): the strings of `raw`, whose framing is right, to `out`, with a separator behind each.

    `used` counts bytes of `out`, which has to be as long as `raw`. Where not `fine`, the next string is not UTF-8.
    """
    base, size, target = address_of(raw), raw.size, address_of(out)
    first = target
    place = int64(0)
    count = int64(0)
    while place < size:
        stop = place + 4 + load_u32(base + place)
        place += 4
        while place < stop:
            if place + 8 <= stop:
                eight = load_u64(base + place)
                plain = count_trailing_zeros(eight & _TOPS) >> 3
                store_u64(target, eight)
                place += plain
                target += plain
                if plain == 8:
                    continue
            after = place + 1
            if load_u8(base + place) >= 128:
                after, _ = character(base, place, stop)
                if after < 0:
                    return target - first, count, False
            while place < after:
                store_u8(target, load_u8(base + place))
                place += 1
                target += 1
        store_u8(target, 0xFF)
        target += 1
        count += 1
    return target - first, count, True


@entry
def room_for(texts: Bytes) -> int:
    """Bytes that the strings of `texts`, UTF-8 with a separator behind each, take as objects, with their places."""
    base, size = address_of(texts), texts.size
    place = int64(0)
    total = int64(0)
    while place < size:
        begin = place
        longer, widest = 0, 0
        while True:
            c = load_u8(base + place)
            place += 1
            if c == 255:
                break
            longer += c & 0xC0 == 0x80
            widest = max(widest, c)
        width = 1 if widest < 0xC4 else 2 if widest < 0xF0 else 4
        total += (place - begin - longer) * width
        total += OBJECT_BYTES
    return total


def objects(texts: NDArray[np.uint8], count: int, charge: Callable[[int], None] | None) -> NDArray[Any]:
    """The `count` strings of `texts`, UTF-8 with a separator behind each, as a flat array.

    `charge` is told what they will take, in bytes, before they do; what it raises is raised.
    """
    if charge is not None:
        charge(room_for(texts))
    items: NDArray[Any] = np.empty(count, object)
    raw = texts.data
    place, item = 0, 0
    while place < len(raw):
        end = _portion_end(texts, place)
        if end - place >= _LONG and _is_ascii(texts[place:end]):
            pieces = str(raw[place : end - 1], "latin-1").split(_LATIN)  # a third less work
        else:
            pieces = str(raw[place : end - 1], "utf-8", "surrogateescape").split(_DECODED)
        items[item : item + len(pieces)] = pieces
        item += len(pieces)
        place = end
    return items


def _is_ascii(texts: NDArray[np.uint8]) -> bool:
    """Whether all but the separators is ASCII."""
    return int(np.count_nonzero(texts > 127)) == int(np.count_nonzero(texts == SEPARATOR[0]))


def _portion_end(texts: NDArray[np.uint8], place: int) -> int:
    """The place after a separator, about PORTION bytes after `place`."""
    end = place + PORTION
    while end < texts.size:
        found = np.flatnonzero(texts[end - 1 : end - 1 + PORTION] == SEPARATOR[0])
        if found.size:
            return end + int(found[0])
        end += PORTION
    return int(texts.size)


def warm() -> None:
    """Compile, or load from the cache, all of it."""
    raw: NDArray[np.uint8] = np.frombuffer(b"\1\0\0\0a", np.uint8)
    texts = np.empty(raw.size, np.uint8)
    framed(raw, 1)
    used, count, _ = separated(raw, texts)
    objects(texts[:used], count, lambda size: None)
