"""Read, measure and copy strings in frames, in compiled code that creates no Python objects.

Functions that follow `starts` check each frame (see `string_frames`) against the end of `octets`, so they are safe for
any input.
"""

from __future__ import annotations

from app.compilation.decorators import entry, inner
from app.compilation.intrinsics import (
    Address,
    Bytes,
    Integers,
    address_of,
    int64,
    load_u8,
    load_u32,
    load_u64,
    store_u8,
    store_u32,
    store_u64,
)
from app.tensors.compiled_utf8 import is_utf8
from app.tensors.string_frames import CUT_LENGTH, CUT_TEXT, HEAD, ROOM, WHOLE


@entry
def read_frames(octets: Bytes, wanted: int, starts: Integers) -> tuple[int, int, int]:
    """See `app.tensors.string_frames.read_frames`."""
    base, size = address_of(octets), octets.size
    target, room = address_of(starts), starts.size
    place = int64(0)
    count = int64(0)
    wrong = int64(-1)
    while place < size and count <= wanted:
        text = place + HEAD
        if text > size:
            return count, CUT_LENGTH, wrong
        stop = text + load_u32(base + place)
        if stop > size:
            return count, CUT_TEXT, wrong
        if count < room:
            store_u64(target + 8 * count, place)
        if wrong < 0 and not is_utf8(base, text, stop, size):
            wrong = count
        place = stop
        count += 1
    return count, WHOLE, wrong


@inner
def frame_size(base: Address, size: int, start: int) -> int:
    """Return the bytes of the frame at `start`, or -1 if it is not within the `size` bytes at `base`."""
    if start < 0 or start > size - HEAD:
        return -1
    length = HEAD + load_u32(base + start)
    return length if length <= size - start else -1


@entry
def frames_size(octets: Bytes, starts: Integers) -> int:
    """See `app.tensors.string_frames.frames_size`."""
    base, size = address_of(octets), octets.size
    total = int64(0)
    for start in starts:
        length = frame_size(base, size, start)
        if length < 0:
            return -1
        total += length
    return total


@entry
def first_longer(octets: Bytes, starts: Integers, most: int) -> int:
    """See `app.tensors.string_frames.first_longer`."""
    base, size = address_of(octets), octets.size
    for number in range(starts.size):
        if frame_size(base, size, starts[number]) - HEAD > most:
            return number
    return -1


@entry
def copy_frames(octets: Bytes, starts: Integers, out: Bytes) -> int:
    """See `app.tensors.string_frames.copy_frames`."""
    base, size = address_of(octets), octets.size
    limit = base + size
    first = address_of(out)
    target, end = first, first + out.size - ROOM
    for start in starts:
        length = frame_size(base, size, start)
        if length < 0 or length > end - target:
            return -1
        place, after = base + start, target + length
        while target < after and place + 8 <= limit:
            store_u64(target, load_u64(place))
            place += 8
            target += 8
        while target < after:
            store_u8(target, load_u8(place))
            place += 1
            target += 1
        target = after
    return target - first


@entry
def make_frames(offsets: Integers, octets: Bytes, frames: Bytes, starts: Integers) -> tuple[int, int]:
    """See `app.tensors.string_frames.make_frames`."""
    base, size = address_of(octets), octets.size
    first = address_of(frames)
    target, end = first, first + frames.size
    wrong = int64(-1)
    for number in range(offsets.size - 1):
        start, stop = offsets[number], offsets[number + 1]
        if start < 0 or start > stop or stop > size or stop - start > end - target - HEAD or number >= starts.size:
            return number, wrong
        store_u32(target, stop - start)
        starts[number] = target - first
        target += HEAD
        after, place = target + stop - start, base + start
        while target + 8 <= after:
            store_u64(target, load_u64(place))
            place += 8
            target += 8
        while target < after:
            store_u8(target, load_u8(place))
            place += 1
            target += 1
        if wrong < 0 and not is_utf8(base, start, stop, size):
            wrong = number
    return max(offsets.size - 1, 0), wrong


@entry
def text_bounds(octets: Bytes, starts: Integers, bounds: Integers) -> None:
    """See `app.tensors.string_frames.text_bounds`."""
    base, size = address_of(octets), octets.size
    for number in range(min(starts.size, bounds.size // 2)):
        length = frame_size(base, size, starts[number])
        bounds[2 * number] = starts[number] + HEAD if length >= 0 else -1
        bounds[2 * number + 1] = starts[number] + length if length >= 0 else -1
