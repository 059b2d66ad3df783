"""Read and change the buckets of a key index in compiled code; see `app.keys.probe`.

Looking up a key waits for memory three times: for the bucket, for the key of the row in its entry, and for the bytes of
a string. A search therefore processes BLOCK keys together, step by step. Each step prefetches the memory for the next
step, so the waits for the keys of a block overlap.
"""

from __future__ import annotations

from typing import Final

from app.compilation.array_header import ArrayHeader, Objects, address, count_of, item_of, length
from app.compilation.decorators import entry, inlined, inner
from app.compilation.intrinsics import (
    Address,
    Bytes,
    Integers,
    address_of,
    count_trailing_zeros,
    find_words,
    int64,
    load_u64,
    mulhi_u64,
    prefetch,
    signed,
    stack_words,
    store_u8,
    store_u64,
)
from app.keys.compiled.key_bytes import equal_keys, hash_key, is_torn, string_size
from app.keys.index_layout import LINE, MOST_PROBES, ROW_BITS, ROW_MASK, WORDS
from app.keys.probe import FRAMES
from app.tensors.compiled_string_frames import frame_bounds

BLOCK: Final = 64
"""Number of keys that are searched together. Measured with `benchmarks.kernels keys`."""
_ENTRIES: Final = 0xFE
"""Bit mask of the words of a bucket that are entries."""
_FINGERPRINT: Final = signed(2**64 - 1 - ROW_MASK)
_WHOLE: Final = -1
_MISSING: Final = -1
_FARTHER: Final = -2
_UNCLEAR: Final = -3
"""Results instead of a row: the key is missing, may be in a later bucket, or may be in another entry of this bucket."""
_block_words: Final = stack_words(BLOCK)
_block_bounds: Final = stack_words(2 * BLOCK)


@inlined
def _bucket(buckets: Address, number: int) -> Address:
    return buckets + LINE * number


@inlined
def _next(number: int, count: int) -> int:
    return number + 1 if number + 1 < count else 0


@inlined
def _row(entry_address: Address) -> int:
    return (load_u64(entry_address) & ROW_MASK) - 1


@inner
def _search(
    index: Address, count: int, hashed: int, offsets: Address, step: int, keys: Address, size: int, rows: int,
    wanted_offsets: Address, wanted_step: int, wanted_keys: Address, wanted_size: int, number: int,
) -> int:  # fmt: skip
    """Return the row of a key with this hash, or -1."""
    fingerprint = hashed << ROW_BITS
    home = mulhi_u64(hashed, count)
    for _ in range(min(count, MOST_PROBES)):
        bucket = _bucket(index, home)
        alike = find_words(bucket, fingerprint, _FINGERPRINT) & _ENTRIES
        while alike != 0:
            row = _row(bucket + 8 * count_trailing_zeros(alike))
            if 0 <= row < rows and equal_keys(
                offsets, step, keys, size, row, wanted_offsets, wanted_step, wanted_keys, wanted_size, number
            ):
                return row
            alike &= alike - 1
        if load_u64(bucket) == 0:
            return -1
        home = _next(home, count)
    return -1


@inner
def _place(index: Address, count: int, hashed: int, row: int) -> bool:
    """Write the entry of a key that is not in the index. Returns False if there is no room."""
    home = mulhi_u64(hashed, count)
    at = home
    for passed in range(min(count, MOST_PROBES)):
        bucket = _bucket(index, at)
        free = find_words(bucket, 0, _WHOLE) & _ENTRIES
        if free != 0:
            _add_to_passed(index, count, home, passed, 1)
            store_u64(bucket + 8 * count_trailing_zeros(free), hashed << ROW_BITS | (row + 1))
            return True
        at = _next(at, count)
    return False


@inner
def _add_to_passed(index: Address, count: int, home: int, passed: int, change: int) -> None:
    """Add `change` to the overflow counts of `passed` buckets, starting at `home`."""
    for _ in range(passed):
        bucket = _bucket(index, home)
        store_u64(bucket, load_u64(bucket) + change)
        home = _next(home, count)


@inner
def _entry_of_row(index: Address, count: int, hashed: int, row: int) -> tuple[Address, int]:
    """Return the address of the entry with this row and hash (0 if there is none), and the number of buckets passed."""
    at = mulhi_u64(hashed, count)
    wanted = hashed << ROW_BITS | (row + 1)
    for passed in range(min(count, MOST_PROBES)):
        bucket = _bucket(index, at)
        alike = find_words(bucket, wanted, _WHOLE) & _ENTRIES
        if alike != 0:
            return bucket + 8 * count_trailing_zeros(alike), passed
        if load_u64(bucket) == 0:
            return int64(0), passed
        at = _next(at, count)
    return int64(0), int64(0)


@inner
def _fill_hole(
    index: Address, count: int, low: int, high: int, offsets: Address, step: int, keys: Address, size: int, rows: int,
    hole: Address, hole_bucket: int,
) -> None:  # fmt: skip
    """Fill a free entry with the nearest entry that was pushed past it, and repeat for the entry that this frees."""
    at = hole_bucket
    for _ in range(min(count, MOST_PROBES) - 1):
        if load_u64(_bucket(index, at)) == 0:
            return
        at = _next(at, count)
        distance = at - hole_bucket if at >= hole_bucket else at - hole_bucket + count
        for place in range(1, WORDS):
            entry_at = _bucket(index, at) + 8 * place
            row = _row(entry_at)
            if row < 0 or row >= rows or is_torn(offsets, step, size, row):
                continue
            hashed = hash_key(offsets, step, keys, size, row, low, high)
            home = mulhi_u64(hashed, count)
            way = at - home if at >= home else at - home + count
            if way >= distance and (load_u64(entry_at) ^ hashed << ROW_BITS) & _FINGERPRINT == 0:
                store_u64(hole, load_u64(entry_at))
                store_u64(entry_at, 0)
                _add_to_passed(index, count, hole_bucket, distance, -1)
                hole, hole_bucket = entry_at, at
                break


@entry
def hash_keys(offsets: Bytes, step: int, keys: Bytes, seed: Bytes, out: Integers, start: int, stop: int) -> None:
    """See `app.keys.probe.hash_keys`."""
    low, high = load_u64(address_of(seed)), load_u64(address_of(seed) + 8)
    offsets_at, keys_at = address_of(offsets), address_of(keys)
    for row in range(start, stop):
        out[row] = hash_key(offsets_at, step, keys_at, keys.size, row, low, high)


@entry
def find(searches: Objects, numbers: ArrayHeader) -> None:
    """See `app.keys.probe.find`."""
    for at in range(min(count_of(searches), length(numbers))):
        place = address(numbers) + 24 * at
        missing = _run_search(item_of(searches, at), load_u64(place), load_u64(place + 8), load_u64(place + 16))
        store_u64(place + 16, missing)


@inner
def _run_search(search: Objects, step: int, wanted_step: int, instead: int) -> int:
    """Run a search. Returns the number of missing keys."""
    index, keys, wanted_keys = item_of(search, 0), item_of(search, 2), item_of(search, 4)
    buckets, count = address(index) + LINE, length(index) // LINE - 1
    low, high = load_u64(address(index) + 16), load_u64(address(index) + 24)
    offsets_at, keys_at, size = address(item_of(search, 1)), address(keys), length(keys)
    rows = size if step == 0 else length(item_of(search, 1)) - (step == 8)
    first_of_rows, row_bytes = (keys_at, 8) if step == 0 else (offsets_at, step)
    wanted_offsets_at, wanted_at, wanted_size = address(item_of(search, 3)), address(wanted_keys), length(wanted_keys)
    out, lacks, total = address(item_of(search, 5)), address(item_of(search, 6)), length(item_of(search, 5))
    hashes, bounds = _block_words(), _block_bounds()
    missing = int64(0)
    for first in range(0, total, BLOCK):
        # The wanted keys of a block are numbered from 0.
        block = min(BLOCK, total - first)
        own_offsets, own_step, own_keys = wanted_offsets_at + wanted_step * first, wanted_step, wanted_at
        if wanted_step == 0:
            own_keys += 8 * first
        elif wanted_step == FRAMES:
            frame_bounds(wanted_at, wanted_size, wanted_offsets_at + 8 * first, block, bounds)
            own_offsets, own_step = bounds, int64(16)
        place = out + 8 * first
        for number in range(block):
            hashed = hash_key(own_offsets, own_step, own_keys, wanted_size, number, low, high)
            store_u64(hashes + 8 * number, hashed)
            prefetch(_bucket(buckets, mulhi_u64(hashed, count)))
        for number in range(block):
            hashed = load_u64(hashes + 8 * number)
            row = _first_match(buckets, count, mulhi_u64(hashed, count), hashed, rows)
            store_u64(place + 8 * number, row)
            if row >= 0:
                prefetch(first_of_rows + row_bytes * row)
        for number in range(block):
            if load_u64(place + 8 * number) == _FARTHER:
                hashed = load_u64(hashes + 8 * number)
                row = _first_match(buckets, count, _next(mulhi_u64(hashed, count), count), hashed, rows)
                store_u64(place + 8 * number, row)
                if row >= 0:
                    prefetch(first_of_rows + row_bytes * row)
        if step != 0:
            for number in range(block):
                row = load_u64(place + 8 * number)
                if row >= 0 and string_size(offsets_at, step, size, row) > 0:
                    prefetch(keys_at + load_u64(offsets_at + step * row))
        for number in range(block):
            row = load_u64(place + 8 * number)
            if row < _MISSING or (
                row >= 0
                and not equal_keys(
                    offsets_at, step, keys_at, size, row, own_offsets, own_step, own_keys, wanted_size, number
                )
            ):
                row = _search(
                    buckets, count, load_u64(hashes + 8 * number), offsets_at, step, keys_at, size, rows,
                    own_offsets, own_step, own_keys, wanted_size, number,
                )  # fmt: skip
            store_u64(place + 8 * number, instead if row < 0 else row)
            store_u8(lacks + first + number, row < 0)
            missing += row < 0
    return missing


@inlined
def _first_match(buckets: Address, count: int, at: int, hashed: int, rows: int) -> int:
    """Return the row of a bucket's first entry with the fingerprint of `hashed`, or _MISSING, _FARTHER or _UNCLEAR."""
    bucket = _bucket(buckets, at)
    alike = find_words(bucket, hashed << ROW_BITS, _FINGERPRINT) & _ENTRIES
    if alike != 0:
        row = _row(bucket + 8 * count_trailing_zeros(alike))
        return row if 0 <= row < rows else _UNCLEAR
    if load_u64(bucket) == 0:
        return _MISSING
    prefetch(_bucket(buckets, _next(at, count)))
    return _FARTHER


@entry
def insert(
    index: Bytes, offsets: Bytes, step: int, keys: Bytes, start: int, stop: int, duplicates: Integers
) -> tuple[int, int]:  # fmt: skip
    """See `app.keys.probe.insert`."""
    low, high = load_u64(address_of(index) + 16), load_u64(address_of(index) + 24)
    buckets, count = address_of(index) + LINE, index.size // LINE - 1
    offsets_at, keys_at, size = address_of(offsets), address_of(keys), keys.size
    hashes = _block_words()
    repeated = int64(0)
    for first in range(start, stop, BLOCK):
        last = min(first + BLOCK, stop)
        for row in range(first, last):
            hashed = hash_key(offsets_at, step, keys_at, size, row, low, high)
            store_u64(hashes + 8 * (row - first), hashed)
            prefetch(_bucket(buckets, mulhi_u64(hashed, count)))
        for row in range(first, last):
            if is_torn(offsets_at, step, size, row):
                continue
            hashed = load_u64(hashes + 8 * (row - first))
            earlier = _search(
                buckets, count, hashed, offsets_at, step, keys_at, size, row, offsets_at, step, keys_at, size, row
            )  # fmt: skip
            if earlier >= 0:
                if repeated < duplicates.size:
                    duplicates[repeated] = row
                repeated += 1
            elif not _place(buckets, count, hashed, row):
                return repeated, row
    return repeated, stop


@entry
def remove(index: Bytes, offsets: Bytes, step: int, keys: Bytes, rows: int, removed: Integers) -> int:
    """See `app.keys.probe.remove`."""
    low, high = load_u64(address_of(index) + 16), load_u64(address_of(index) + 24)
    buckets, count = address_of(index) + LINE, index.size // LINE - 1
    offsets_at, keys_at, size = address_of(offsets), address_of(keys), keys.size
    found = int64(0)
    for row in removed:
        if row < 0 or row >= rows or is_torn(offsets_at, step, size, row):
            continue
        hashed = hash_key(offsets_at, step, keys_at, size, row, low, high)
        at, passed = _entry_of_row(buckets, count, hashed, row)
        if at != 0:
            store_u64(at, 0)
            home = mulhi_u64(hashed, count)
            _add_to_passed(buckets, count, home, passed, -1)
            _fill_hole(
                buckets, count, low, high, offsets_at, step, keys_at, size, rows, at, (home + passed) % count
            )  # fmt: skip
            found += 1
    return found


@entry
def move(
    index: Bytes, offsets: Bytes, step: int, keys: Bytes, rows: int, sources: Integers, targets: Integers
) -> int:  # fmt: skip
    """See `app.keys.probe.move`."""
    low, high = load_u64(address_of(index) + 16), load_u64(address_of(index) + 24)
    buckets, count = address_of(index) + LINE, index.size // LINE - 1
    offsets_at, keys_at, size = address_of(offsets), address_of(keys), keys.size
    found = int64(0)
    for number in range(sources.size):
        row = sources[number]
        if row < 0 or row >= rows or is_torn(offsets_at, step, size, row):
            continue
        hashed = hash_key(offsets_at, step, keys_at, size, row, low, high)
        at, _ = _entry_of_row(buckets, count, hashed, row)
        if at != 0:
            store_u64(at, load_u64(at) & ~ROW_MASK | (targets[number] + 1))
            found += 1
    return found
