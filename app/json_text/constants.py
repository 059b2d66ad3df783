"""Constants shared by the plain and compiled readers and writers of JSON and by their callers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.tensors.dtypes import DTYPES, DType
from app.tensors.string_frames import HEAD
from app.tensors.string_frames import ROOM as FRAMES_ROOM

MAX_DEPTH: Final = 512
"""Maximum nesting depth of lists and objects.

RFC 8259 section 9 leaves the limit to the parser; Python's own parser stops at about 1,000, and orjson stops at 1,024.
"""

MOST_ARRAYS: Final = 4
"""Maximum number of arrays to cut out of a gather: values and base64 of both tensors.

If there are more, a key is repeated.
"""
SCALAR: Final = 0
QUOTED: Final = -1
ESCAPED: Final = -2
"""Kinds of an array: the number of opening brackets, or SCALAR, QUOTED (a string), or ESCAPED (a string with a
backslash).
"""
SHORT_DIGITS: Final = 15
"""Maximum number of digits with which different decimals always have different binary64 values."""
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
"""Kinds of elements for `read_elements`: bool, integers by size, floats, string. A complex item consists of two floats.
SKIP checks only the nesting, for elements of any kind.
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
"""The float kinds range from here up to STRING."""
OPEN: Final = MAX_DEPTH + 1
"""Value of `leaf` in `read_elements` if the first element determines the depth."""

WIDEST: Final = 21
"""Maximum bytes of text of a float32: a sign, 16 digits and `.0`, a comma, and a bracket if it is in a pair."""
TEXT_ROOM: Final = 32
"""Spare bytes required after the text of float32 items."""
_WORD: Final = 8


def strings_room(strings: int, span: int) -> int:
    """Return the bytes of output that `read_elements` needs for `strings` strings in a span of `span` bytes.

    In the span, a string takes three bytes in addition to its text: two quotes and a comma. In the frames, it takes
    HEAD bytes in addition to its text.
    """
    return _WORD * strings + span + (HEAD - 3) * strings + FRAMES_ROOM
