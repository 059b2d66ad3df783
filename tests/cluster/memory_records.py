"""A coordinator's records in the memory of the test, which outlive the coordinator."""

from __future__ import annotations

from app.cluster.coordinator.run_coordinator import KEPT


class MemoryRecords:
    """See `run_coordinator.Records`."""

    def __init__(self) -> None:
        self._records: dict[int, bytes] = {}

    def latest(self) -> bytes | None:
        return self._records[max(self._records)] if self._records else None

    def find(self, number: int) -> bytes | None:
        return self._records.get(number)

    def create(self, number: int, record: bytes) -> bytes | None:
        if number in self._records:
            return self._records[number]
        self._records[number] = record
        if number > KEPT:
            self._records[number - KEPT] = b""
        return None
