"""What an import asks of a source: its first bytes, and ranges of it, all of one content."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from app.tensors.buffer_type import Buffer

PIECE_BYTES: Final = 1 << 22
"""Bytes of a range that is asked for at once."""
HEAD_BYTES: Final = 1 << 16
"""Bytes that are read first, which usually hold the header."""


@dataclass(frozen=True, slots=True)
class Checksum:
    """The checksum that a source gives of all its bytes, by the name of the algorithm in hashlib."""

    algorithm: str
    digest: bytes


class Source(Protocol):
    """A file of bytes. Each method but `close` raises SourceFailed; `read` and `open` have retried before.

    `size` is None after `open` if its server does not say it: who reads its header then sets what that asks for.
    """

    size: int | None
    checksum: Checksum | None

    async def open(self) -> bytes:
        """Find it: sets `size` and `checksum`; the first HEAD_BYTES, or all where there are fewer."""

    async def read(self, begin: int, end: int) -> Buffer:
        """The bytes from `begin` up to `end`, of the content that `open` found.

        Spans are asked for in ascending order, but for the bytes of a header.
        """

    async def close(self) -> Any:
        """Release connections and files."""
