"""Collect the responses that become ready in one turn of the event loop, and write them together at the end of the
turn.

A write wakes the client's process, and waking it costs this process more than answering a small gather. Measured on
2026-11-20 (2 cores, AMD EPYC): if each response is written immediately, the rate falls to 85% for tiny JSON gathers and
74% for binary lookups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Final

MAX_DELAY_S: Final = 1e-3
MAX_BATCH_BYTES: Final = 1 << 20
"""A batch whose first response has waited for more than MAX_DELAY_S seconds, or that has more than MAX_BATCH_BYTES
bytes, is written as soon as the next response is ready. A long turn is thus written in several batches.
"""


class WriteBatch:
    """The responses that are waiting for the end of this turn of the event loop."""

    def __init__(self) -> None:
        self._answers: list[tuple[asyncio.Transport, Sequence[bytes | bytearray | memoryview]]] = []
        self._since = 0.0
        self._bytes = 0

    def enqueue(
        self, transport: asyncio.Transport, answer: Sequence[bytes | bytearray | memoryview], size: int
    ) -> None:
        """Queue a response whose body has `size` bytes."""
        answers = self._answers
        if not answers:
            asyncio.get_running_loop().call_soon(self.flush)
            self._since = perf_counter()
            self._bytes = size
            answers.append((transport, answer))
            return
        answers.append((transport, answer))
        self._bytes += size
        if self._bytes > MAX_BATCH_BYTES or perf_counter() - self._since > MAX_DELAY_S:
            self.flush()

    def flush(self) -> None:
        """Write all queued responses. Call this before writing to a transport directly, to keep responses in order."""
        if not self._answers:
            return
        answers, self._answers = self._answers, []
        for transport, answer in answers:
            if not transport.is_closing():
                transport.writelines(answer)


_batch: Final = WriteBatch()
enqueue: Final = _batch.enqueue
flush: Final = _batch.flush
