"""Assign the rows of a table with keys to ranges: each key has a hash, and each range covers an interval of hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.keys.key_column import KeyColumn, KeyType
from app.keys.key_index import hash_keys, new_seed

HASHES: Final = 1 << 64
"""Number of hashes. The ranges of a table cover the hashes from 0 to HASHES - 1."""


@dataclass(frozen=True, slots=True)
class KeyPlacement:
    """The keys of a version: their type, their hash seed in hex, and the digest of all keys in the order sent.

    A new random seed is drawn for each version. The cluster's operators can see it.
    """

    dtype: KeyType
    seed: str
    sha256: str = ""

    @staticmethod
    def draw(dtype: KeyType, sha256: str) -> KeyPlacement:
        """Return the placement of a new version, with a new random seed."""
        return KeyPlacement(dtype, new_seed().hex(), sha256)

    def range_numbers(self, column: KeyColumn, starts: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Return the index of each key's range. `starts` holds the first hash of each range."""
        return np.searchsorted(starts, hash_keys(column, bytes.fromhex(self.seed)), "right") - 1


def hash_bounds(ranges: int) -> list[tuple[int, int]]:
    """Divide all hashes into `ranges` intervals whose sizes differ by at most one."""
    return [(number * HASHES // ranges, (number + 1) * HASHES // ranges) for number in range(ranges)]


def first_hashes(bounds: Sequence[int]) -> NDArray[np.uint64]:
    """Return the first hashes of ranges as a read-only array, in the form that `KeyPlacement.range_numbers` expects."""
    found = np.array(bounds, np.uint64)
    found.flags.writeable = False
    return found
