"""The memory of a request that tells a function what is charged."""

from __future__ import annotations

from collections.abc import Callable

from app.memory.budget import Memory


class ToldMemory(Memory):
    """Calls `told` with each charge, and with the difference if one is adjusted; what it raises is raised."""

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told

    def charge(self, size: int) -> None:
        """Tell of a charge."""
        self._told(size)

    def adjust(self, planned: int, size: int) -> None:
        """Tell of the difference."""
        self._told(size - planned)
