"""Admission: decide, before any work, whether a request may start.

If a body is large or of unknown length, the decision is made as soon as the header has arrived, so an overloaded
service refuses the request before it reads the body.
"""

from __future__ import annotations

from typing import Final

from app.dispatch.concurrent_body_reads import BodyReadLimit
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.memory.budget import Budget

SMALL_BODY_BYTES: Final = 1 << 16
"""Maximum size in bytes of a body that is read on the event loop without waiting in a queue."""


class Admission:
    """Checks that a request can run.

    A request needs bytes from `budget`, a thread of `pool` and, if its body is large, a place in `body_reads`. Fewer
    than `requests` other requests may be in flight.
    """

    def __init__(self, budget: Budget, pool: RequestThreadPool, requests: int) -> None:
        self.budget = budget
        self.pool = pool
        self.requests = requests
        self.body_reads = BodyReadLimit(budget, queue_timeout=pool.queue_timeout)

    def too_many(self) -> GatherError:
        """Return the error for a request beyond the limit on requests in flight."""
        return GatherError(
            "overloaded",
            f"{self.requests} requests are in progress, which is the limit",
            facts={"limit": "requests", "maximum": self.requests},
            retry_after=1,
        )

    def admit(self, size: int | None) -> None:
        """Check a request whose body has not been read yet. `size` is the size of the body in bytes; None if unknown.

        Raises payload_too_large if the body exceeds the whole memory budget, and overloaded if there is currently no
        room for it or the queue is full.
        """
        if size is not None:
            self.budget.admit_now(size)
        if size is not None and size <= SMALL_BODY_BYTES:
            return
        if self.pool.full:
            raise self.pool.overloaded()
        if self.body_reads.full(self.pool.queue, size):
            raise GatherError(
                "overloaded",
                "too many bodies are waiting to be read",
                facts={"limit": "queue", "maximum": self.pool.queue},
                retry_after=1,
            )
