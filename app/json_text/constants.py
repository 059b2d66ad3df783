"""The numbers that the readers and writers of JSON, plain and compiled, and those who call them agree on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.tensors.dtypes import DTYPES, DType
from app.tensors.string_frames import HEAD
from app.tensors.string_frames import ROOM as FRAMES_ROOM

MAX_DEPTH: Final = 512
"""Lists and objects in each other, at most: RFC 8259 section 9 leaves the bound to the reader; Python's own gives up at
about 1,000, orjson at 1,024."""

MOST_ARRAYS: Final = 4
"""How many arrays of a gather are cut out: values and base64 of both tensors; one that has more repeats a key."""
SCALAR: Final = 0
QUOTED: Final = -1
ESCAPED: Final = -2
"""Kinds of an array: how many brackets it opens with, or SCALAR, QUOTED for a string, ESCAPED for one with a
backslash."""
SHORT_DIGITS: Final = 15
"""Digits of a decimal that binary64 tells from every other one of as many."""
TENSOR_DEPTH: Final = 2
"""Of a tensor's members in a gather: {"data": {"values": ..."""
FEATURE_DEPTH: Final = 4
"""Of the members of a feature's tensors in a lookup: {"features": [{"indices": {"values": ..."""
INPUT_DEPTH: Final = 3
"""Of an input's members in an inference request: {"inputs": [{"data": ..."""
ARRAY_KEYS: Final[Mapping[int, tuple[str, ...]]] = {
    TENSOR_DEPTH: ("values", "base64"),
    FEATURE_DEPTH: ("values", "base64"),
    INPUT_DEPTH: ("data",),
}
"""The names of the members that hold arrays, by their depth."""

SKIP: Final = 0
_OWN_KINDS: Final = [
    row.name for kind in ("bool", "int", "uint", "float", "string") for row in DTYPES.values() if row.kind == kind
]
KINDS: Final[Mapping[str, int]] = {name: number for number, name in enumerate(_OWN_KINDS, SKIP + 1)} | {
    "complex64": SKIP + 1 + _OWN_KINDS.index("float32"),
    "complex128": SKIP + 1 + _OWN_KINDS.index("float64"),
}
"""What `read_elements` calls the types: bool, the integers by size, floats, string. A complex item is two floats. SKIP
stands for elements of any kind, of which only the nesting is looked at."""
BOOL: Final = KINDS["bool"]
INT8: Final = KINDS["int8"]
INT64: Final = KINDS["int64"]
UINT8: Final = KINDS["uint8"]
UINT64: Final = KINDS["uint64"]
FLOAT32: Final = KINDS["float32"]
FLOAT64: Final = KINDS["float64"]
STRING: Final = KINDS["string"]
FLOATS: Final[Mapping[int, DType]] = {KINDS[row.name]: row for row in DTYPES.values() if row.kind == "float"}
FIRST_FLOAT: Final = min(FLOATS)
"""The kinds of floats are those from here up to STRING."""
OPEN: Final = MAX_DEPTH + 1
"""The depth of the elements where the first one is to set it."""

WIDEST: Final = 21
"""Bytes of the longest text of a float32: a sign, 16 digits and `.0`, a comma, and a bracket if it is of a pair."""
TEXT_ROOM: Final = 32
"""Bytes that must be there behind the text of float32."""
_WORD: Final = 8


def strings_room(strings: int, span: int) -> int:
    """Bytes that `read_elements` has to have for so many strings in a span of so many bytes.

    A string takes three bytes of the span beside its text, two quotes and a comma, and HEAD bytes of the frames.
    """
    return _WORD * strings + span + (HEAD - 3) * strings + FRAMES_ROOM
