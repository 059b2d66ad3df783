"""The nesting of a JSON array against what it has to be, whatever its elements are.

The text is reduced to an outline: brackets, commas, and a 0 for each element. Of lists that are nested evenly that is
known from their sizes, so that the two are compared as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.wire.json.codec_constants import OPEN
from app.wire.json.plain.patterns import ANY_STRING

_BLOCK: Final = 1 << 16
"""Bytes of text that are reduced together."""
_ELEMENT: Final = ord("0")
_OTHER: Final = b" 0 "
_STRING: Final = re.compile(ANY_STRING, re.DOTALL)
_WHOLE_STRINGS: Final = re.compile(rb'(?:[^"]++|%b)*+' % ANY_STRING, re.DOTALL)
_BRACE: Final = re.compile(rb"[{}]")


def _outline_of_bytes() -> NDArray[np.uint8]:
    """What each byte becomes: 0 for white space, itself for brackets and commas, an element's for others."""
    table = np.full(256, _ELEMENT, np.uint8)
    table[list(b"[],")] = list(b"[],")
    table[list(b" \t\n\r")] = 0
    return table


_OUTLINE: Final = _outline_of_bytes()


class Nesting(NamedTuple):
    """Lists that are nested evenly: how many elements there are, and the size of each list, outermost first."""

    elements: int
    sizes: tuple[int, ...]


def read_nesting(
    text: memoryview, leaf: int, inner: int, dims: NDArray[np.int64], *, strings: bool, objects: bool
) -> Nesting | None:
    """The nesting of `text`, or None where it is not what the others say (see `read_elements`).

    With `strings` and `objects`, elements may be such, in which there may be anything; else brackets, commas and white
    space are what they seem. What is in objects is right only if the text is JSON.
    """
    blocks = _without_strings(text) if strings else _blocks(text)
    outline = _outline(_without_objects(blocks) if objects else blocks)
    given = (*dims[: leaf - 1].tolist(), inner) if leaf else ()
    sizes = _sizes_of(outline) if inner < 0 else given
    if sizes is None or (leaf != OPEN and len(sizes) != leaf) or not _is_outline_of(sizes, outline):
        return None
    elements = 1
    for size in sizes:
        elements *= size
    return Nesting(elements, sizes)


def _blocks(text: memoryview) -> Iterator[bytes]:
    for first in range(0, len(text), _BLOCK):
        yield bytes(text[first : first + _BLOCK])


def _without_strings(text: memoryview) -> Iterator[bytes]:
    """The text with an element for each string; what follows a quote that does not close stays."""
    place = 0
    while place < len(text):
        stop = _WHOLE_STRINGS.match(text, place, place + _BLOCK).end()  # type: ignore[union-attr]
        if stop == place:
            string = _STRING.match(text, place)
            stop = min(place + _BLOCK, len(text)) if string is None else string.end()
        yield _STRING.sub(_OTHER, text[place:stop])
        place = stop


def _without_objects(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The text with an element for each object; one that does not close ends it."""
    depth = 0
    for block in blocks:
        if depth == 0 and b"{" not in block:
            yield block
            continue
        pieces = []
        place = 0
        for brace in _BRACE.finditer(block):
            if brace[0] == b"{":
                if depth == 0:
                    pieces.append(block[place : brace.start()])
                depth += 1
            elif depth:
                depth -= 1
                if depth == 0:
                    pieces.append(_OTHER)
                    place = brace.end()
        if depth == 0:
            pieces.append(block[place:])
        yield b"".join(pieces)


def _outline(blocks: Iterator[bytes]) -> bytes:
    pieces = []
    last = 0
    for block in blocks:
        marks = _OUTLINE[np.frombuffer(block, np.uint8)]
        if not marks.size:
            continue
        goes_on = marks == _ELEMENT
        goes_on[1:] &= marks[:-1] == _ELEMENT
        goes_on[0] &= last == _ELEMENT
        pieces.append(marks[(marks != 0) & ~goes_on].tobytes())
        last = int(marks[-1])
    return b"".join(pieces)


def _sizes_of(outline: bytes) -> tuple[int, ...] | None:
    """The sizes of the first list of each depth; None where the lists cannot be nested evenly."""
    leaf = len(outline) - len(outline.lstrip(b"["))
    if not leaf:
        return ()
    place = outline.find(b"]")
    sizes = [(place - leaf + 1) // 2]
    length = place - leaf + 2
    for level in range(2, leaf + 1):
        place = outline.find(b"]" * level, place)
        if place < 0:
            return None
        whole = place + level - (leaf - level)
        sizes.append((whole - 1) // (length + 1))
        length = whole
    return tuple(reversed(sizes))


def _is_outline_of(sizes: Sequence[int], outline: bytes) -> bool:
    """Whether an outline is that of lists of these sizes."""
    length = 1
    for size in reversed(sizes):
        length = 2 + size * (length + 1) - (size > 0)
        if size and length > len(outline):
            return False
    if length != len(outline):
        return False
    one = b"0"
    around = 0  # lists of one item, which are wrapped together
    for size in reversed(sizes):
        if size == 1:
            around += 1
            continue
        one = b"[" * around + one + b"]" * around
        one = b"[%b]" % ((one + b",") * size)[:-1]
        around = 0
    return outline == b"[" * around + one + b"]" * around
