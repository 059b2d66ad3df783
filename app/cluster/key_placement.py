"""The placement of rows of a table with keys: each key has a hash, and each range an interval of hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.keys.key_column import KeyColumn, KeyType
from app.keys.key_index import hash_keys, new_seed

HASHES: Final = 1 << 64
"""Ranges cover the hashes from 0 to HASHES - 1."""


@dataclass(frozen=True, slots=True)
class KeyPlacement:
    """The keys of a version: their type, the seed of their hashes in hex, and the digest of all, in the order sent.

    The seed is drawn for each version. It is not secret from those who run the cluster.
    """

    dtype: KeyType
    seed: str
    sha256: str = ""

    @staticmethod
    def drawn(dtype: KeyType, sha256: str) -> KeyPlacement:
        """Return the placement of a new version."""
        return KeyPlacement(dtype, new_seed().hex(), sha256)

    def range_numbers(self, column: KeyColumn, starts: NDArray[np.uint64]) -> NDArray[np.intp]:
        """Return the number of the range of each key; `starts` has the first hash of each range."""
        return np.searchsorted(starts, hash_keys(column, bytes.fromhex(self.seed)), "right") - 1


def hash_bounds(ranges: int) -> list[tuple[int, int]]:
    """Cut all hashes into `ranges` intervals whose sizes differ by one at most."""
    return [(number * HASHES // ranges, (number + 1) * HASHES // ranges) for number in range(ranges)]


def first_hashes(bounds: Sequence[int]) -> NDArray[np.uint64]:
    """Return the starts of ranges as `KeyPlacement.range_numbers` takes them; read-only."""
    found = np.array(bounds, np.uint64)
    found.flags.writeable = False
    return found
