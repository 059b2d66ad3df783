"""Read, measure and copy strings in frames, in compiled code that creates no Python objects.

Functions that use `starts` check each frame (see `string_frames`) against the end of `octets`, so they are safe for any
input.
"""

from __future__ import annotations

from app.compilation.array_header import ArrayHeader, Objects, address, count_of, item_of, length
from app.compilation.decorators import entry, inlined, inner
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
    """Return the number of bytes in the frame at `start`, or -1 if it is not within the `size` bytes at `base`."""
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


@inlined
def _copy(place: Address, limit: Address, target: Address, after: Address, end: Address) -> None:
    """Copy the bytes at `place` to [target, after). May read up to `limit` and write up to `end`."""
    while target < after and place + 8 <= limit and target + 8 <= end:
        store_u64(target, load_u64(place))
        place += 8
        target += 8
    while target < after:
        store_u8(target, load_u8(place))
        place += 1
        target += 1


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
        _copy(base + start, limit, target, target + length, end + ROOM)
        target += length
    return target - first


@entry
def make_frames(jobs: Objects, results: ArrayHeader) -> None:
    """See `app.tensors.string_frames.make_frames`."""
    for at in range(min(count_of(jobs), length(results))):
        made, wrong = _make_frames(item_of(jobs, at))
        store_u64(address(results) + 16 * at, made)
        store_u64(address(results) + 16 * at + 8, wrong)


@inner
def _make_frames(job: Objects) -> tuple[int, int]:
    offsets, octets, frames, starts = item_of(job, 0), item_of(job, 1), item_of(job, 2), item_of(job, 3)
    base, size, cuts = address(octets), length(octets), address(offsets)
    first = address(frames)
    target, end = first, first + length(frames)
    wrong = int64(-1)
    for number in range(length(offsets) - 1):
        start, stop = load_u64(cuts + 8 * number), load_u64(cuts + 8 * number + 8)
        if start < 0 or start > stop or stop > size or stop - start > end - target - HEAD or number >= length(starts):
            return number, wrong
        store_u32(target, stop - start)
        store_u64(address(starts) + 8 * number, target - first)
        target += HEAD
        _copy(base + start, base + size, target, target + stop - start, end)
        target += stop - start
        if wrong < 0 and not is_utf8(base, start, stop, size):
            wrong = number
    return max(length(offsets) - 1, 0), wrong


@entry
def text_bounds(octets: Bytes, starts: Integers, bounds: Integers) -> None:
    """See `app.tensors.string_frames.text_bounds`."""
    count = min(starts.size, bounds.size // 2)
    frame_bounds(address_of(octets), octets.size, address_of(starts), count, address_of(bounds))


@inner
def frame_bounds(base: Address, size: int, starts: Address, count: int, bounds: Address) -> None:
    """For each of `count` frames, write the start and end of its text, or -1 if it is not within `size` bytes at
    `base`.

    `starts` is the address of `count` int64 items, and `bounds` is the address of twice as many.
    """
    for number in range(count):
        start = load_u64(starts + 8 * number)
        length = frame_size(base, size, start)
        store_u64(bounds + 16 * number, start + HEAD if length >= 0 else -1)
        store_u64(bounds + 16 * number + 8, start + length if length >= 0 else -1)
