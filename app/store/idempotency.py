"""Idempotency-Keys: their form, which scatters were answered before, and with what.

A key stands in the redo record of its scatter, so that one fsync makes both durable; a checkpoint of the log moves its
keys to the catalogue. A key belongs to the name in the path of its request, as it was written there: that of a tensor,
`NAME@7` or an alias (its scope). It outlives what the name stands for: a retry gets the first answer also when the
tensor has been replaced or removed since, or the alias moved. So before a name comes to stand for another content, the
keys that were given with it go from the log of the old one to the catalogue.

They live 24 hours by the store's own clock, which only rises: within one boot it goes on with the machine's clock since
boot; it stands still while the machine is off or the store moves to another one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from app.errors import GatherError
from app.store.catalogue.catalogue_database import Catalogue
from app.store.catalogue.catalogue_rows import AnsweredKey
from app.store.catalogue.catalogue_transaction import Transaction
from app.store.processes.directory_lock import StateWord
from app.store.scatters.pending_scatter import Scattered
from app.store.scatters.scatter_log import ScatterLog

KEY: Final = re.compile(r"[\x21-\x7e]{1,256}")
"""The form of a key: 1 to 256 visible ASCII characters."""
LIFETIME_NS: Final = 24 * 3600 * 10**9
DRAWN: Final = "/"
"""Prefix of the keys that routers draw for scatters sent without one, so that they can retry a range."""
DRAWN_LIFETIME_NS: Final = 3600 * 10**9
"""Most keys that a shard remembers for routers, which retry only within the time of one request."""
_KEYS_PER_TRANSACTION: Final = 1000
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def read_key(field: bytes | None) -> str | None:
    """The key in the header field Idempotency-Key, None if there is no such field. Raises invalid_field."""
    if field is None:
        return None
    text = field.decode("latin-1").strip()
    if not KEY.fullmatch(text):
        raise GatherError(
            "invalid_field",
            "an Idempotency-Key is 1 to 256 visible ASCII characters",
            hint="Send an Idempotency-Key of letters and digits, such as a UUID.",
            pointer="/idempotency-key",
        )
    return text


def _boot() -> tuple[str, int]:
    """The id of this boot of the machine, and the nanoseconds since it began, sleep included."""
    try:
        name = _BOOT_ID.read_text().strip()
    except OSError:
        name = ""
    return name, _since_boot()


def _since_boot() -> int:
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class StoreClock:
    """Nanoseconds that the store has been in use, shared by the processes of a group."""

    def __init__(self, state: memoryview) -> None:
        self._state = state

    def start(self, facts: dict[str, Any]) -> None:
        """In the first process of a group: go on from the values in the catalogue."""
        boot, since = _boot()
        clock = int(facts["clock"])
        if boot and facts["boot"] == boot:
            clock += max(0, since - int(facts["boottime"]))
        self._state[StateWord.CLOCK] = clock
        self._state[StateWord.BOOT] = since
        self._state[StateWord.KEYS] = int(facts["keys"])

    def advance_to(self, time_ns: int) -> None:
        """Move on to `time_ns` unless it has passed; at start-up."""
        self._state[StateWord.CLOCK] += max(0, time_ns - self.now())

    def now(self) -> int:
        """The time."""
        return int(self._state[StateWord.CLOCK]) + _since_boot() - int(self._state[StateWord.BOOT])

    def facts(self) -> dict[str, Any]:
        """The values that the catalogue keeps of it."""
        boot, since = _boot()
        return {"clock": self.now(), "boot": boot, "boottime": since}


class IdempotencyKeys:
    """The keys that the catalogue and the redo logs hold."""

    def __init__(
        self,
        catalogue: Catalogue,
        change: Callable[[], AbstractContextManager[Transaction]],
        state: memoryview,
        maximum: int,
    ) -> None:
        """`change` begins a transaction that ends with its context; at most `maximum` keys are remembered."""
        self._catalogue = catalogue
        self._change = change
        self._state = state
        self._maximum = maximum
        self.clock = StoreClock(state)

    def find_answer(self, scope: str, log: ScatterLog | None, key: str | None, digest: str) -> Scattered | None:
        """What the request with this key was answered, None for a new key.

        `scope` is the name that the request was sent to; `log` is the log of the content that it stands for, read to
        its end. Raises invalid_field if the key came with another request.
        """
        if key is None:
            return None
        found = None if log is None else log.keys.get((scope, key))
        if (found is None or found.clock <= self._expiry()) and self._state[StateWord.KEYS]:
            found = self._catalogue.find_key(scope, key)
        if found is None or found.clock <= self._expiry():
            return None
        if found.digest != digest:
            raise GatherError(
                "invalid_field",
                "this Idempotency-Key was already used for another request",
                hint="Use a new Idempotency-Key for each request, such as a UUID.",
                pointer="/idempotency-key",
            )
        return Scattered(found.etag, found.version, repeated=True, counts=found.counts)

    def all_of(self, scope: str, logged: Iterable[AnsweredKey]) -> list[AnsweredKey]:
        """All keys of a scope that have not expired, with those that a log has. Raises OSError."""
        expiry = self._expiry()
        found = {one.key: one for one in self._catalogue.keys_of(scope, expiry)}
        found |= {one.key: one for one in logged if one.scope == scope and one.clock > expiry}
        return list(found.values())

    def check_limit(self, log: ScatterLog) -> None:
        """Raises insufficient_storage if one more key could not be remembered for its 24 hours.

        `log` is the log of a content, read to its end.
        Keys in the logs of other tensors are not counted before they reach the catalogue. Raises OSError too.
        """
        if self._is_full(log):
            self.remove_expired()
        if self._is_full(log):
            raise GatherError(
                "insufficient_storage",
                f"the store remembers {self._maximum} Idempotency-Keys of the last 24 hours, which is its limit",
                facts={"limit": "idempotency_keys", "maximum": self._maximum},
            )

    def _is_full(self, log: ScatterLog) -> bool:
        return self._state[StateWord.KEYS] + len(log.keys) >= self._maximum

    def remove_expired(self) -> None:
        """Remove some thousands of expired keys from the catalogue. Raises OSError."""
        with self._change() as transaction:
            transaction.store_keys((), self._expiry())
            transaction.set_facts(self.clock.facts())

    def logged_at(self, key: str | None, *, replicated: bool) -> int:
        """The time that a record with this key has: a key that a router drew for a replicated content ages sooner."""
        is_drawn = replicated and key is not None and key.startswith(DRAWN)
        return self.clock.now() - (LIFETIME_NS - DRAWN_LIFETIME_NS if is_drawn else 0)

    def store(self, transaction: Transaction, answers: Sequence[AnsweredKey]) -> None:
        """Enter those that have not expired in the catalogue, and remove some that have."""
        expiry = self._expiry()
        unexpired = [answer for answer in answers if answer.clock > expiry]
        if unexpired:
            transaction.store_keys(unexpired, expiry)
            transaction.set_facts(self.clock.facts())

    def store_in_parts(self, answers: Sequence[AnsweredKey]) -> None:
        """Enter keys in several short transactions, so that no other writer waits long. Raises OSError."""
        for first in range(0, len(answers), _KEYS_PER_TRANSACTION):
            with self._change() as transaction:
                self.store(transaction, answers[first : first + _KEYS_PER_TRANSACTION])

    def _expiry(self) -> int:
        return self.clock.now() - LIFETIME_NS
