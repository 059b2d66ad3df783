"""Admission: decides, before any work, whether a request may begin.

A request whose body is large or of unknown length is decided when its header has arrived, so that a full service
refuses before it reads the body.
"""

from __future__ import annotations

from typing import Final

from app.dispatch.concurrent_body_reads import BodyReadLimit
from app.dispatch.request_thread_pool import RequestThreadPool
from app.errors import GatherError
from app.memory.budget import Budget

SMALL_BODY_BYTES: Final = 1 << 16
"""Bodies of up to this many bytes are read on the event loop, without a place in a queue."""


class Admission:
    """Checks that a request can run: bytes of `budget`, a thread of `pool`, a place in `body_reads` for a large body,
    and fewer than `requests` others in progress.
    """

    def __init__(self, budget: Budget, pool: RequestThreadPool, requests: int) -> None:
        self.budget = budget
        self.pool = pool
        self.requests = requests
        self.body_reads = BodyReadLimit(budget, queue_timeout=pool.queue_timeout)

    def too_many(self) -> GatherError:
        """The refusal of a request at the limit of requests in progress."""
        return GatherError(
            "overloaded",
            f"{self.requests} requests are in progress, which is the limit",
            facts={"limit": "requests", "maximum": self.requests},
            retry_after=1,
        )

    def admit(self, size: int | None) -> None:
        """Check a request whose body, of `size` bytes or of unknown length (None), is still to be read.

        Raises payload_too_large if the memory budget can never hold it, and overloaded if it cannot now or if the queue
        is full.
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
