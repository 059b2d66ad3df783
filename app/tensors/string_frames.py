"""Strings in frames: read, measured and copied.

A frame is the inference protocol's BYTES framing: a little-endian uint32 length and that many bytes of UTF-8. The
functions here are the plain ones; compiled ones replace them once they are ready.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.compilation.until_compiled import UntilCompiled

HEAD: Final = 4
"""Bytes of a frame's length."""
ROOM: Final = 8
"""Extra bytes at the end of an output, because the functions may store eight bytes at a time."""
WHOLE, CUT_LENGTH, CUT_TEXT = range(3)
"""State of the last frame that `read_frames` saw: complete, cut within its length, or cut within its text."""


@UntilCompiled
def read_frames(octets: NDArray[np.uint8], wanted: int, starts: NDArray[np.int64]) -> tuple[int, int, int]:
    """(strings, fault, first that is not UTF-8 or -1) of the frames that fill `octets`, read until more than `wanted`.

    The offset of each frame is written to `starts` as far as there is room. The fault is WHOLE for none, CUT_LENGTH if
    the length before string number `strings` ends early, or CUT_TEXT if that string does.
    """
    place = count = 0
    wrong = -1
    while place < octets.size and count <= wanted:
        text = frame_text(octets, place)
        if text is None:
            return count, CUT_LENGTH if octets.size - place < HEAD else CUT_TEXT, wrong
        if count < starts.size:
            starts[count] = place
        if wrong < 0 and not _is_utf8(text):
            wrong = count
        place += HEAD + len(text)
        count += 1
    return count, WHOLE, wrong


@UntilCompiled
def frames_size(octets: NDArray[np.uint8], starts: NDArray[np.int64]) -> int:
    """Bytes of the frames at `starts`, or -1 if one is not within `octets`."""
    total = 0
    for start in starts.tolist():
        text = frame_text(octets, start)
        if text is None:
            return -1
        total += HEAD + len(text)
    return total


@UntilCompiled
def first_longer(octets: NDArray[np.uint8], starts: NDArray[np.int64], most: int) -> int:
    """Number of the first of the frames at `starts` whose text has more than `most` bytes, or -1."""
    for number, start in enumerate(starts.tolist()):
        text = frame_text(octets, start)
        if text is not None and len(text) > most:
            return number
    return -1


@UntilCompiled
def copy_frames(octets: NDArray[np.uint8], starts: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
    """Copy the frames at `starts` to `out`, one after the other. Returns the bytes written.

    -1 if a frame is not within `octets`, or does not fit into `out` without its last ROOM bytes.
    """
    used = 0
    for start in starts.tolist():
        text = frame_text(octets, start)
        if text is None or HEAD + len(text) > out.size - ROOM - used:
            return -1
        size = HEAD + len(text)
        out[used : used + size] = octets[start : start + size]
        used += size
    return used


def frames_of(offsets: NDArray[np.int64], octets: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The frames of the strings that `offsets` (int64[n + 1]) cuts out of `octets`, and the offset of each frame."""
    sizes = np.diff(offsets)
    starts = offsets[:-1] - offsets[0] + HEAD * np.arange(len(sizes))
    frames = np.empty(int(offsets[-1] - offsets[0]) + HEAD * len(sizes), np.uint8)
    is_text = np.ones(len(frames), np.bool_)
    heads_at(is_text.view(np.uint8))[starts] = 0
    heads_at(frames)[starts] = sizes
    frames[is_text] = octets[offsets[0] : offsets[-1]]
    return frames, starts


def heads_at(octets: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """A view in which the item at each byte is the length of the frame that begins there."""
    return np.ndarray((max(octets.size - HEAD + 1, 0),), "<u4", octets, strides=(1,))


def frame_text(octets: NDArray[np.uint8], start: int) -> memoryview | None:
    """The text of the frame at `start`, or None if it is not within `octets`."""
    if not 0 <= start <= octets.size - HEAD:
        return None
    text = start + HEAD
    stop = text + int.from_bytes(octets.data[start:text], "little")
    return octets.data[text:stop] if stop <= octets.size else None


def _is_utf8(text: memoryview) -> bool:
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
