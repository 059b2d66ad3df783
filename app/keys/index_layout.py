"""The bytes of a key index: a header and buckets, each the size of a cache line, all in little-endian 64-bit words.

| bytes | content |
|---|---|
| 0 to 8 | `MAGIC` |
| 8 to 16 | the key type's position in `KEY_TYPES` |
| 16 to 32 | the seed |
| 32 to 40 | the number of buckets |
| 40 to 64 | zeros |
| 64 + 64 b | bucket b: its overflow count, and seven entries |

A free entry is 0. In any other entry, the upper 24 bits are a fingerprint (the low bits of the key's hash), and the
lower 40 bits are the row + 1. The upper bits of a key's hash choose its home bucket. If the home bucket is full when a
key is inserted, the key goes into the next bucket with a free entry. The overflow count of a bucket is the number of
keys that passed it in this way, so a search ends at a bucket that no key has passed. When a key is removed, the nearest
key that passed the freed entry moves into it. The entry that this frees is filled in the same way, so searches stay as
short as in a newly built index.

A header followed by zeros is an empty index. The keys themselves are in the key column. At capacity, with three
quarters of its entries in use, an index takes 12.2 bytes per key.
"""

from __future__ import annotations

from typing import Final

LINE: Final = 64
"""Size of the header, and of a bucket, in bytes."""
WORDS: Final = 8
"""Number of words in a bucket: the overflow count and the entries."""
MAGIC: Final = b"gndkeys1"
"""The format and its version."""
SEED_BYTES: Final = 16
ROW_BITS: Final = 40
ROW_MASK: Final = (1 << ROW_BITS) - 1
MOST_ROWS: Final = ROW_MASK - 1
"""Maximum number of rows that the 40 bits of an entry can number."""
MOST_PROBES: Final = 1024
"""Maximum number of buckets that one search reads, no matter what the index contains.

Even for 2 ** 40 keys, every key is expected to be within 150 buckets of its home.
"""
_KEYS_OF_BUCKETS: Final = (21, 4)
"""21 keys for 4 buckets, a load of 0.75: a hit reads 1.12 buckets, and a miss reads 1.55 (`benchmarks.kernels keys`).

At a load of 0.8 these are 1.18 and 2.05.
"""


def bucket_count(capacity: int) -> int:
    """Return the number of buckets in an index for `capacity` keys, which is at least one."""
    keys, buckets = _KEYS_OF_BUCKETS
    return max((capacity * buckets + keys - 1) // keys, 1)


def capacity_of(buckets: int) -> int:
    """Return the maximum number of keys in `buckets` buckets, at a load of 0.75."""
    keys, per = _KEYS_OF_BUCKETS
    return min(buckets * keys // per, MOST_ROWS)


def index_bytes(capacity: int) -> int:
    """Return the size in bytes of an index for up to `capacity` keys.

    Raises ValueError if `capacity` is negative or above MOST_ROWS.
    """
    if not 0 <= capacity <= MOST_ROWS:
        raise ValueError(f"an index has between 0 and {MOST_ROWS} keys, not {capacity}")
    return LINE + LINE * bucket_count(capacity)
