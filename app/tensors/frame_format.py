"""The frame of a string in memory: the inference protocol's BYTES framing, a little-endian uint32 length and so many
bytes of UTF-8.
"""

from __future__ import annotations

from typing import Final

HEAD: Final = 4
"""Bytes of a frame before its text."""
ROOM: Final = 8
"""Bytes that an output of the functions of `string_frames` is longer than what it is for: they may store eight at a
time."""
WHOLE, CUT_LENGTH, CUT_TEXT = range(3)
"""What `read_frames` says of the last frame: nothing is missing, its length ends early, or its text does."""
