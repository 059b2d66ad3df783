"""The words of the page of memory that the processes of a group share (`directory_lock` maps it)."""

from __future__ import annotations

from enum import IntEnum


class StateWord(IntEnum):
    """The place of each word in the page.

    GENERATION is twice the number of the catalogue's last change, odd while one is being committed: see
    `catalogue_cache`. VERIFIED is 1 once all contents were compared with their checksums. CLOCK is what the store's
    clock showed when the machine's showed BOOT: see `idempotency`. KEYS is an upper bound of the Idempotency-Keys in
    the catalogue. LEFTOVERS_REMOVED is when files left by dead processes were last removed, by the store's clock.
    """

    GENERATION = 0
    VERIFIED = 1
    CLOCK = 2
    BOOT = 3
    KEYS = 4
    LEFTOVERS_REMOVED = 5
