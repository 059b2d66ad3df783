"""The interface of a source: its first bytes, and ranges of it, all of one content; and its errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from app.errors import GatherError
from app.tensors.buffer_type import Buffer

PIECE_BYTES: Final = 1 << 22
"""Bytes of a range that is requested at once."""
HEAD_BYTES: Final = 1 << 16
"""Bytes that are read first, which usually hold the header."""
CHANGED: Final = "it was changed meanwhile"


@dataclass(frozen=True, slots=True)
class Checksum:
    """The checksum that a source gives of all its bytes, by the name of the algorithm in hashlib."""

    algorithm: str
    digest: bytes


class Source(Protocol):
    """A file of bytes. Each method except `close` raises SourceFailed; `read` and `open` retry first.

    `size` is None after `open` if its server does not give it; the reader of its header then sets it.
    """

    size: int | None
    checksum: Checksum | None

    @property
    def has_ranges(self) -> bool:
        """Whether shards may read ranges of it at the same URL, once it is open."""

    async def open(self) -> bytes:
        """Find it and set `size` and `checksum`. Returns the first HEAD_BYTES, or all bytes if there are fewer."""

    async def read(self, begin: int, end: int) -> Buffer:
        """The bytes from `begin` up to `end`, of the content that `open` found.

        Spans are requested in ascending order, except for the bytes of a header.
        """

    async def close(self) -> Any:
        """Release connections and files."""


class SourceFailed(Exception):
    """The source cannot be imported; the text says why, without queries of URLs, credentials or addresses."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint

    def as_error(self, shown: str) -> GatherError:
        """The error import_failed; `shown` is the URL without its query."""
        return import_failed(shown, self.why, self.hint)


class Interrupted(Exception):
    """The source did not answer completely, but may when it is asked again after `retry_after` seconds."""

    def __init__(self, why: str, retry_after: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.retry_after = retry_after


def import_failed(shown: str, why: str, hint: str | None = None) -> GatherError:
    """import_failed for the source at a URL without its query."""
    return GatherError("import_failed", f"{shown} could not be imported: {why}", pointer="/url", hint=hint)
