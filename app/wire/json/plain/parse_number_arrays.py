"""Arrays of JSON scalars to packed items: the sibling of `app.wire.json.compiled.parse_number_arrays`.

The nesting is compared with that of the shape as a whole (`nesting`). The elements are read by a JSON library, a block
of the text at a time, so that the memory is bounded; what the library would round, and the first wrong element, are
looked for one by one (`parse_element`).
"""

from __future__ import annotations

import re
from itertools import chain, islice
from struct import Struct
from typing import Final

import numpy as np
import orjson
from numpy.typing import NDArray

from app.wire.json.codec_constants import FIRST_FLOAT, SKIP, STRING
from app.wire.json.plain.nesting import Nesting, read_nesting
from app.wire.json.plain.parse_element import WIDTHS, is_element, read_block
from app.wire.json.plain.patterns import ANY_STRING

_BLOCK: Final = 1 << 16
"""Bytes of text that are read together, unless one element has more."""
_TOKENS: Final = 1 << 9
"""Elements that are read together in the search for the first wrong one."""
_BRACKETS: Final = b"[]"
_COMMA: Final = re.compile(b",")
_STRINGS: Final = re.compile(rb'(?:[^"]*+%b)*+' % ANY_STRING, re.DOTALL)
_ONE_STRING: Final = re.compile(rb'[^"]*+%b' % ANY_STRING, re.DOTALL)
_STRING: Final = re.compile(ANY_STRING, re.DOTALL)
_TOKEN: Final = re.compile(rb'%b|\{|[^ \t\n\r,\[\]{"]++' % ANY_STRING, re.DOTALL)
_HEAD: Final = Struct("<I")
_WORD: Final = 8
_BEGINNING: Final = (0, 0)
_Outcome = tuple[bool, int, int, int, int, int]


def read_elements(
    view: NDArray[np.uint8],
    first: int,
    end: int,
    kind: int,
    leaf: int,
    inner: int,
    room: int,
    dims: NDArray[np.int64],
    out: NDArray[np.uint8],
    bare: bool,
) -> _Outcome:
    """See `app.wire.json.compiled.parse_number_arrays.read_elements`.

    Where not `fine`, place and element are those of the first wrong element, if the nesting is right and the text is
    JSON. Of SKIP the text is JSON for certain.
    """
    text = view.data[first:end]
    nesting = read_nesting(text, leaf, inner, dims, strings=kind in (STRING, SKIP), objects=kind == SKIP)
    if nesting is None:
        if kind == SKIP or read_nesting(text, leaf, inner, dims, strings=True, objects=True) is None:
            return False, first, 0, 0, leaf, inner
        element, place = _first_wrong(text, 0, 0, kind, bare)
        return False, first + place, element, 0, leaf, inner
    if nesting.elements > room:
        return False, first, 0, 0, leaf, inner
    used, wrong = 0, None
    if kind == STRING:
        used, wrong = _read_strings(text, nesting.elements, room, out)
    elif kind != SKIP:
        wrong = _read_numbers(text, nesting.elements, kind, out, bare and kind >= FIRST_FLOAT)
    if wrong is not None:
        element, place = _first_wrong(text, *wrong, kind, bare)
        return False, first + place, element, 0, leaf, inner
    _tell(nesting, dims)
    return True, end, nesting.elements, used, len(nesting.sizes), nesting.sizes[-1] if nesting.sizes else inner


def _tell(nesting: Nesting, dims: NDArray[np.int64]) -> None:
    outer = nesting.sizes[:-1]
    dims[: len(outer)] = outer


def _read_numbers(
    text: memoryview, elements: int, kind: int, out: NDArray[np.uint8], bare: bool
) -> tuple[int, int] | None:
    """Store the elements in `out`; None, or (element, place) of the beginning of the block with the first wrong one."""
    if not elements:
        return None
    width = WIDTHS[kind]
    place = element = 0
    while place < len(text):
        stop = len(text)
        block = bytes(text[place : place + _BLOCK])
        if place + len(block) < stop:
            comma = block.rfind(b",")
            if comma < 0:
                further = _COMMA.search(text, place + len(block))
                comma = (stop if further is None else further.start()) - place
                block = bytes(text[place : place + comma])
            stop = min(place + comma + 1, stop)
            block = block[:comma]
        items = read_block(block.translate(None, _BRACKETS), kind, bare)
        if items is None or element + items.size > elements:
            return element, place
        out[width * element : width * (element + items.size)] = items.view(np.uint8)
        element += items.size
        place = stop
    return None if element == elements else _BEGINNING


def _read_strings(
    text: memoryview, elements: int, room: int, out: NDArray[np.uint8]
) -> tuple[int, tuple[int, int] | None]:
    """(bytes used by the frames, None), or (0, _BEGINNING) where an element is wrong."""
    starts, octets = out[: _WORD * room].view(np.int64), out[_WORD * room :]
    place = element = used = 0
    while element < elements:
        found = _STRINGS.match(text, place, place + _BLOCK)
        stop = place if found is None else found.end()
        if stop == place:
            found = _ONE_STRING.match(text, place)
            if found is None:
                return 0, _BEGINNING
            stop = found.end()
        texts = _texts(_STRING.findall(text, place, stop))
        if texts is None or element + len(texts) > elements:
            return 0, _BEGINNING
        sizes = np.fromiter(map(len, texts), np.int64, len(texts)) + _HEAD.size
        ends = used + np.cumsum(sizes)
        starts[element : element + len(texts)] = ends - sizes
        frames = b"".join(chain.from_iterable(zip(map(_HEAD.pack, map(len, texts)), texts, strict=True)))
        octets.data[used : used + len(frames)] = frames
        used += len(frames)
        element += len(texts)
        place = stop
    return used, None


def _texts(strings: list[bytes]) -> list[bytes] | None:
    """The UTF-8 of JSON strings, or None where one is none."""
    try:
        values = orjson.loads(b"[%b]" % b",".join(strings))
    except orjson.JSONDecodeError:
        return None
    return list(map(str.encode, values))


def _first_wrong(text: memoryview, element: int, place: int, kind: int, bare: bool) -> tuple[int, int]:
    """(element, place) of the first wrong element from `element` on, which begins at `place` or later."""
    tokens = _TOKEN.finditer(text, place)
    bare = bare and FIRST_FLOAT <= kind < STRING
    while some := list(islice(tokens, _TOKENS)):
        if read_block(b",".join([token[0] for token in some]), kind, bare) is None:
            for token in some:
                if not is_element(token[0], kind, bare):
                    return element, token.start()
                element += 1
        else:
            element += len(some)
    return 0, 0
