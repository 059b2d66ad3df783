"""Numbers shared by the plain and compiled readers and writers of JSON and by their callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.tensors.dtypes import DTYPES, DType
from app.tensors.string_frames import HEAD
from app.tensors.string_frames import ROOM as FRAMES_ROOM

MAX_DEPTH: Final = 512
"""Most nested lists and objects: RFC 8259 section 9 leaves the limit to the reader; Python's own gives up at about
1,000, orjson at 1,024.
"""

MOST_ARRAYS: Final = 4
"""Most arrays of a gather that are cut out: values and base64 of both tensors; with more, a key is repeated."""
SCALAR: Final = 0
QUOTED: Final = -1
ESCAPED: Final = -2
"""Kinds of an array: how many brackets it opens with, or SCALAR, QUOTED for a string, ESCAPED for a string with a
backslash.
"""
SHORT_DIGITS: Final = 15
"""Digits with which binary64 represents every decimal distinctly."""
TENSOR_DEPTH: Final = 2
"""Depth of a tensor's members in a gather: {"data": {"values": ..."""
FEATURE_DEPTH: Final = 4
"""Depth of the members of a feature's tensors in a lookup: {"features": [{"indices": {"values": ..."""
INPUT_DEPTH: Final = 3
"""Depth of an input's members in an inference request: {"inputs": [{"data": ..."""
ARRAY_KEYS: Final[Mapping[int, tuple[str, ...]]] = {
    TENSOR_DEPTH: ("values", "base64"),
    FEATURE_DEPTH: ("values", "base64"),
    INPUT_DEPTH: ("data",),
}
"""Names of the members that hold arrays, by their depth."""

SKIP: Final = 0
_OWN_KINDS: Final = [
    row.name for kind in ("bool", "int", "uint", "float", "string") for row in DTYPES.values() if row.kind == kind
]
KINDS: Final[Mapping[str, int]] = {name: number for number, name in enumerate(_OWN_KINDS, SKIP + 1)} | {
    "complex64": SKIP + 1 + _OWN_KINDS.index("float32"),
    "complex128": SKIP + 1 + _OWN_KINDS.index("float64"),
}
"""Kinds of elements for `read_elements`: bool, the integers by size, floats, string. A complex item is two floats. SKIP
checks only the nesting, for elements of any kind.
"""
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
"""The float kinds are from here up to STRING."""
OPEN: Final = MAX_DEPTH + 1
"""Depth of the elements if the first one determines it."""

WIDEST: Final = 21
"""Most bytes of the text of a float32: a sign, 16 digits and `.0`, a comma, and a bracket if it is in a pair."""
TEXT_ROOM: Final = 32
"""Bytes of room needed after the text of float32."""
_WORD: Final = 8


def strings_room(strings: int, span: int) -> int:
    """Bytes of output that `read_elements` needs for this many strings in a span of this many bytes.

    In the span a string has three bytes besides its text, two quotes and a comma; in the frames it has HEAD bytes.
    """
    return _WORD * strings + span + (HEAD - 3) * strings + FRAMES_ROOM
