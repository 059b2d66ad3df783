"""The memory budget: a limit on the bytes held by all requests and responses, charged before they are allocated.

Small requests have a separate budget, so that large requests, whether running or stalled, cannot starve them. A third
budget covers what connections hold outside of requests: incoming headers, and requests that are waiting behind another
one.

A `MemoryReservation` belongs to one request. All of its bytes return to the budget when it is released. Code that reads
or writes for the request receives the reservation as its `Memory`.
"""

from __future__ import annotations

from threading import Lock
from typing import Final

from app.errors import Code, GatherError
from app.memory.malloc_tuning import FreedMemoryLimit

SMALL_REQUEST_BYTES: Final = 1 << 20
MIN_UNCHARGED_BYTES: Final = 1 << 14
"""Bytes that every request may hold without being charged; its own objects take about as much."""
_MAX_UNCHARGED_BYTES: Final = 1 << 17


class Budget:
    """Three budgets: `total` bytes for large requests, and separate ones for small requests and for connections.

    Small requests have an eighth of `total`, and connections have a sixteenth; each has at least 16 MiB.

    A request may hold up to `uncharged` bytes without being counted, because counting takes a lock and would take
    longer than the other checks of a small gather. `requests` is the maximum number of concurrent requests. `uncharged`
    is chosen so that they hold at most another eighth of `total` together, unless MIN_UNCHARGED_BYTES for each of them
    adds up to more.
    """

    def __init__(self, total: int, requests: int = 1024, freed: FreedMemoryLimit | None = None) -> None:
        self.total = total
        self.freed = freed
        self.until_look = 0  # bytes that large requests may still charge before `freed` checks again
        self.small_total = max(total // 8, 16 * SMALL_REQUEST_BYTES)
        self.uncharged = max(MIN_UNCHARGED_BYTES, min(_MAX_UNCHARGED_BYTES, total // 8 // requests))
        self.connection_total = max(total // 16, 16 * SMALL_REQUEST_BYTES)
        self.used = 0
        self.small_used = 0
        self.connection_used = 0  # charged only by the event loop
        self.lock = Lock()  # requests are also charged from threads

    def admit(self, size: int) -> None:
        """Check that `size` bytes can ever fit. Raises payload_too_large."""
        if size > self.total:
            raise GatherError(
                "payload_too_large",
                f"a request of {size} bytes can never fit the memory budget of {self.total} bytes",
                facts={"limit": "memory_budget", "maximum": self.total},
            )

    def admit_now(self, size: int) -> None:
        """Check that `size` bytes fit now. Raises payload_too_large if they can never fit, otherwise overloaded."""
        self.admit(size)
        if size > SMALL_REQUEST_BYTES and self.used + size > self.total:
            raise self.overloaded()

    @property
    def all_used(self) -> int:
        """Total number of bytes that requests and connections hold."""
        return self.used + self.small_used + self.connection_used

    @property
    def all_total(self) -> int:
        """Total number of bytes that requests and connections may hold."""
        return self.total + self.small_total + self.connection_total

    def charge_connection(self, size: int) -> bool:
        """Charge `size` bytes to the connections' budget, or release bytes if `size` is negative.

        Returns False if they do not fit.
        """
        if size > 0 and self.connection_used + size > self.connection_total:
            return False
        self.connection_used += size
        return True

    def overloaded(self) -> GatherError:
        """Return the error for a request that may be retried later."""
        return GatherError(
            "overloaded",
            "the memory budget is full",
            facts={"limit": "memory_budget", "maximum": self.total},
            retry_after=1,
        )


class Memory:
    """The memory of a request.

    Callers charge the bytes that they are about to allocate. This base class counts nothing.
    """

    __slots__ = ()

    def charge(self, size: int) -> None:
        """Charge `size` more bytes. If they do not fit, raises GatherError with a code in REFUSED_UNREAD."""

    def adjust(self, planned: int, size: int) -> None:
        """Replace a charge of `planned` bytes with one of the `size` bytes needed. Raises the errors of `charge`."""


UNCOUNTED: Final = Memory()
REFUSED_UNREAD: Final[frozenset[Code]] = frozenset(("overloaded", "payload_too_large", "not_ready"))
"""Error codes that refuse a request before its body is read, because no memory is free or no reader is ready."""


class MemoryReservation(Memory):
    """The bytes that one request has charged to the budget."""

    __slots__ = ("_budget", "_held")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._held = 0

    @property
    def held(self) -> int:
        """The number of bytes that are currently charged."""
        return self._held

    def charge(self, size: int) -> None:
        """Charge `size` more bytes.

        Raises overloaded or payload_too_large if they do not fit; earlier charges remain.
        """
        budget, held = self._budget, self._held
        grown = held + size
        free = budget.uncharged
        if grown <= free:
            self._held = grown
            return
        with budget.lock:
            if grown <= SMALL_REQUEST_BYTES:
                taken = grown if held <= free else size
                fits = budget.small_used + taken <= budget.small_total
                if fits:
                    budget.small_used += taken
            else:
                taken = grown if held <= SMALL_REQUEST_BYTES else size
                fits = budget.used + taken <= budget.total
                if fits:
                    budget.used += taken
                    budget.until_look -= taken
                    if free < held <= SMALL_REQUEST_BYTES:
                        budget.small_used -= held
            if fits:
                self._held = grown
        if not fits:
            budget.admit(grown)
            raise budget.overloaded()
        if budget.until_look < 0 and budget.freed is not None:
            budget.until_look = budget.freed.kept
            budget.freed.check(budget.used - size)

    def adjust(self, planned: int, size: int) -> None:
        """Replace a charge of `planned` bytes with one of the `size` bytes needed. Raises the errors of `charge`."""
        if size > planned:
            self.charge(size - planned)
            return
        budget, less = self._budget, planned - size
        if self._held <= budget.uncharged:
            self._held -= less
            return
        with budget.lock:
            if self._held <= SMALL_REQUEST_BYTES:
                left = self._held - less
                budget.small_used -= less if left > budget.uncharged else self._held
                self._held = left
            else:  # a large request stays large
                back = min(less, self._held - SMALL_REQUEST_BYTES - 1)
                budget.used -= back
                self._held -= back

    def admit(self, size: int) -> None:
        """Check that `size` more bytes can ever fit, without charging them. Raises payload_too_large."""
        if self._held + size > SMALL_REQUEST_BYTES:
            self._budget.admit(self._held + size)

    def release(self) -> None:
        """Return all bytes to the budget. The reservation can be used again."""
        budget = self._budget
        if self._held > budget.uncharged:  # false for most requests
            with budget.lock:
                if self._held > SMALL_REQUEST_BYTES:
                    budget.used -= self._held
                else:
                    budget.small_used -= self._held
        self._held = 0
