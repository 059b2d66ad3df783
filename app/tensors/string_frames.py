"""Read, measure and copy strings in frames.

A frame is the BYTES framing of the inference protocol: a little-endian uint32 length, followed by as many bytes of
UTF-8. The functions here are plain Python; compiled functions replace them when those are ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.compilation.until_compiled import UntilCompiled

HEAD: Final = 4
"""Number of bytes in a frame's length field."""
ROOM: Final = 8
"""Spare bytes at the end of an output, because the functions may store eight bytes at a time."""
WHOLE, CUT_LENGTH, CUT_TEXT = range(3)
"""State of the last frame that `read_frames` read: complete, cut within its length, or cut within its text."""


@UntilCompiled
def read_frames(octets: NDArray[np.uint8], wanted: int, starts: NDArray[np.int64]) -> tuple[int, int, int]:
    """Read the frames that fill `octets`, until there are more than `wanted`.

    Returns (number of strings, fault, index of the first string that is not UTF-8 or -1). The offsets of the frames are
    written to `starts` as far as there is room. The fault is WHOLE if there is none, CUT_LENGTH if the length of the
    next string is cut short, or CUT_TEXT if the string itself is.
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
    """Return the total bytes of the frames at `starts`, or -1 if one is not within `octets`."""
    total = 0
    for start in starts.tolist():
        text = frame_text(octets, start)
        if text is None:
            return -1
        total += HEAD + len(text)
    return total


@UntilCompiled
def first_longer(octets: NDArray[np.uint8], starts: NDArray[np.int64], most: int) -> int:
    """Return the index of the first frame at `starts` whose text has more than `most` bytes, or -1."""
    for number, start in enumerate(starts.tolist()):
        text = frame_text(octets, start)
        if text is not None and len(text) > most:
            return number
    return -1


@UntilCompiled
def copy_frames(octets: NDArray[np.uint8], starts: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
    """Copy the frames at `starts` to `out`, back to back. Returns the number of bytes written.

    Returns -1 if a frame is not within `octets`, or does not fit into `out` excluding the last ROOM bytes.
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


class Framing(NamedTuple):
    """Strings that `offsets` delimits in `octets`, and the memory for their frames and for the frames' offsets."""

    offsets: NDArray[np.int64]
    octets: NDArray[np.uint8]
    frames: NDArray[np.uint8]
    starts: NDArray[np.int64]


@UntilCompiled
def make_frames(jobs: tuple[Framing, ...], results: NDArray[np.int64]) -> None:
    """Write the frames of strings, and their offsets.

    Writes two numbers for each job to `results` (int64[jobs, 2]): how many frames were built, and the index of the
    first string that is not UTF-8, or -1. A job stops at the first string whose offsets decrease or are outside
    `octets`, or for which `frames` or `starts` has no room.
    """
    for job, result in zip(jobs, results, strict=True):
        result[:] = _make_frames(job)


def _make_frames(job: Framing) -> tuple[int, int]:
    offsets, octets, frames, starts = job
    place, wrong = 0, -1
    bounds = offsets.tolist()
    for count, (start, stop) in enumerate(pairwise(bounds)):
        after = place + HEAD + stop - start
        if not 0 <= start <= stop <= octets.size or after > frames.size or count >= starts.size:
            return count, wrong
        frames[place : place + HEAD] = np.frombuffer((stop - start).to_bytes(HEAD, "little"), np.uint8)
        frames[place + HEAD : after] = octets[start:stop]
        if wrong < 0 and not _is_utf8(octets.data[start:stop]):
            wrong = count
        starts[count] = place
        place = after
    return max(len(bounds) - 1, 0), wrong


@UntilCompiled
def text_bounds(octets: NDArray[np.uint8], starts: NDArray[np.int64], bounds: NDArray[np.int64]) -> None:
    """For each of the n frames at `starts`, write the start and end of its text to `bounds` (int64[2 n]).

    A frame that is not within `octets` gets -1 for both.
    """
    for number, start in enumerate(starts.tolist()):
        text = frame_text(octets, start)
        bounds[2 * number : 2 * number + 2] = -1 if text is None else (start + HEAD, start + HEAD + len(text))


class Framed(NamedTuple):
    """Framed strings: the offset of each frame, the number of frames built, and the first one that is not UTF-8, or
    -1.
    """

    frames: NDArray[np.uint8]
    starts: NDArray[np.int64]
    made: int
    wrong: int


def frames_of(strings: Sequence[tuple[NDArray[np.int64], NDArray[np.uint8]]]) -> list[Framed]:
    """Frame strings, in one call.

    Each item holds offsets (int64[n + 1]) and the octets that they delimit, starting at 0. `made` is less than n if the
    offsets decrease somewhere.
    """
    jobs = []
    for offsets, octets in strings:
        count = len(offsets) - 1
        jobs.append(Framing(offsets, octets, np.empty(octets.size + HEAD * count, np.uint8), np.empty(count, np.int64)))
    results = np.empty((len(jobs), 2), np.int64)
    make_frames.run(tuple(jobs), results)
    return [Framed(job.frames, job.starts, *result) for job, result in zip(jobs, results.tolist(), strict=True)]


def frame_text(octets: NDArray[np.uint8], start: int) -> memoryview | None:
    """Return the text of the frame at `start`, or None if it is not within `octets`."""
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
