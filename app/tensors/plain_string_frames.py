"""Strings in frames, read, measured and copied with Python and NumPy: the siblings of `compiled_string_frames`.

What they do is said there. They look at a block of strings at a time, so that their memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct, error
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.tensors.frame_format import CUT_LENGTH, CUT_TEXT, HEAD, ROOM, WHOLE

_BLOCK: Final = 1 << 12
"""Strings that are looked at together."""
_BLOCK_BYTES: Final = 1 << 18
"""Bytes of text that are checked together, unless one string has more."""
_HEAD: Final = Struct("<I")
_HEAD_BYTES: Final = np.arange(HEAD)


def read_frames(octets: NDArray[np.uint8], wanted: int, starts: NDArray[np.int64]) -> tuple[int, int, int]:
    """See `compiled_string_frames.read_frames`."""
    memory = octets.data
    size, room = octets.size, starts.size
    place = count = 0
    wrong = -1
    fault = WHOLE
    while place < size and count <= wanted and fault == WHOLE:
        places: list[int] = []
        texts: list[memoryview] = []
        begin = place
        while place < size and count + len(places) <= wanted and len(places) < _BLOCK and place - begin < _BLOCK_BYTES:
            try:
                (length,) = _HEAD.unpack_from(memory, place)
            except error:
                fault = CUT_LENGTH
                break
            stop = place + HEAD + length
            if stop > size:
                fault = CUT_TEXT
                break
            places.append(place)
            texts.append(memory[place + HEAD : stop])
            place = stop
        if wrong < 0 and not _is_utf8(b"\0".join(texts)):  # a character does not go on behind a zero byte
            wrong = count + next(number for number, text in enumerate(texts) if not _is_utf8(text))
        kept = places[: max(room - count, 0)]
        starts[count : count + len(kept)] = kept
        count += len(places)
    return count, fault, wrong


def _is_utf8(text: bytes | memoryview) -> bool:
    try:
        str(text, "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def frames_size(octets: NDArray[np.uint8], starts: NDArray[np.int64]) -> int:
    """See `compiled_string_frames.frames_size`."""
    total = 0
    for _, sizes in _blocks(octets, starts):
        if sizes.min() < 0:
            return -1
        total += int(sizes.sum())
    return total


def first_longer(octets: NDArray[np.uint8], starts: NDArray[np.int64], most: int) -> int:
    """See `compiled_string_frames.first_longer`."""
    first = 0
    for places, sizes in _blocks(octets, starts):
        longer = sizes - HEAD > most
        if longer.any():
            return first + int(longer.argmax())
        first += len(places)
    return -1


def copy_frames(octets: NDArray[np.uint8], starts: NDArray[np.int64], out: NDArray[np.uint8]) -> int:
    """See `compiled_string_frames.copy_frames`."""
    memory, target = octets.data, 0
    for frames in frames_at(octets, starts):
        if frames is None:
            return -1
        for begin, end in frames:
            if end - begin > out.size - ROOM - target:
                return -1
            out.data[target : target + end - begin] = memory[begin:end]
            target += end - begin
    return target


def frames_at(octets: NDArray[np.uint8], starts: NDArray[np.int64]) -> Iterator[list[tuple[int, int]] | None]:
    """Begin and end of the frames at `starts`, block by block; None where one is not within `octets`."""
    for places, sizes in _blocks(octets, starts):
        yield None if sizes.min() < 0 else list(zip(places.tolist(), (places + sizes).tolist(), strict=True))


def _blocks(
    octets: NDArray[np.uint8], starts: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Blocks of `starts` with the bytes of each frame, -1 of one that is not within `octets`."""
    size = octets.size
    for first in range(0, starts.size, _BLOCK):
        places = starts[first : first + _BLOCK]
        inside = (places >= 0) & (places <= size - HEAD)
        sizes = np.full(len(places), -1)
        heads = octets[places[inside, np.newaxis] + _HEAD_BYTES]
        sizes[inside] = HEAD + heads.view("<u4").reshape(-1).astype(np.int64)
        sizes[sizes > size - places] = -1
        yield places, sizes
