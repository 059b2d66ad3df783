"""The bytes of a key index: a header and buckets of one cache line each, all in little-endian 64-bit words.

| bytes | content |
|---|---|
| 0 to 8 | `MAGIC` |
| 8 to 16 | the key type's position in `KEY_TYPES` |
| 16 to 32 | the seed |
| 32 to 40 | the number of buckets |
| 40 to 64 | zeros |
| 64 + 64 b | bucket b: its overflow count, and seven entries |

An entry is 0 if it is free. Otherwise its upper 24 bits are a fingerprint, the low bits of the key's hash, and its
lower 40 bits are the row + 1. A key's home is the bucket that the upper bits of its hash choose. A key whose home is
full is in the first bucket after it that had a free entry, and adds one to the overflow count of each bucket passed on
the way. So a search ends at a bucket that no key has passed. When a key is removed, the nearest one that passed it
takes its place, and so on: searches stay as short as in an index that is built anew.

A file of zeros behind the header is an empty index. The keys themselves are in the key column: an index has 12.2 bytes
for each key at its capacity, three quarters of its entries.
"""

from __future__ import annotations

from typing import Final

LINE: Final = 64
"""Bytes of the header, and of a bucket."""
WORDS: Final = 8
"""Words of a bucket: the overflow count and the entries."""
MAGIC: Final = b"gndkeys1"
"""The format and its version."""
SEED_BYTES: Final = 16
ROW_BITS: Final = 40
ROW_MASK: Final = (1 << ROW_BITS) - 1
MOST_ROWS: Final = ROW_MASK - 1
"""Most rows that the 40 bits of an entry can number."""
MOST_PROBES: Final = 1024
"""Buckets that one search reads, whatever the index holds. All of 2 ** 40 keys are expected within 150 buckets of
their homes."""
_KEYS_OF_BUCKETS: Final = (21, 4)
"""21 keys for 4 buckets, a load of 0.75: a hit reads 1.12 buckets, a miss 1.55 (`benchmarks.kernels keys`). At 0.8
these are 1.18 and 2.05."""


def bucket_count(capacity: int) -> int:
    """Return the number of buckets of an index for `capacity` keys, at least one."""
    keys, buckets = _KEYS_OF_BUCKETS
    return max((capacity * buckets + keys - 1) // keys, 1)


def capacity_of(buckets: int) -> int:
    """Return the most keys that `buckets` buckets may hold, at a load of 0.75."""
    keys, per = _KEYS_OF_BUCKETS
    return min(buckets * keys // per, MOST_ROWS)


def index_bytes(capacity: int) -> int:
    """Return the size of an index for up to `capacity` keys.

    Raises ValueError if that is negative or above MOST_ROWS.
    """
    if not 0 <= capacity <= MOST_ROWS:
        raise ValueError(f"an index has between 0 and {MOST_ROWS} keys, not {capacity}")
    return LINE + LINE * bucket_count(capacity)
