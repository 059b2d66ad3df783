"""Requests as services and the thread pool know them, without a transport that carries them."""

from __future__ import annotations

from app.memory.budget import Budget, MemoryReservation
from app.telemetry.served_request import Caller, ServedRequest


def served(
    budget: Budget | None = None, start: float = 0.0, deadline: float = 1e12, caller: Caller | None = None
) -> ServedRequest:
    """A request that came at `start` and charges to `budget`."""
    return ServedRequest(start, deadline, MemoryReservation(budget or Budget(1 << 30)), caller)
