"""Resident tensors by name. The seam that `service` resolves names through; an empty store knows none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.tensors.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Resident:
    """A resident tensor as it is at this moment: its content and the ETag that names that content."""

    tensor: Tensor
    etag: str


class Store(Protocol):
    """What a gather needs of a store."""

    def get(self, name: str) -> Resident | None:
        """The tensor of this name, or None."""
        ...


class EmptyStore:
    """A store without tensors."""

    def get(self, name: str) -> Resident | None:
        """None, whatever the name."""
        return None
