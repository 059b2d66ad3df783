"""The interface of a source, and its errors. All bytes read from an open source come from one version of the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from app.errors import GatherError
from app.tensors.buffer_type import Buffer

PIECE_BYTES: Final = 1 << 22
"""Bytes requested in one range."""
HEAD_BYTES: Final = 1 << 16
"""Bytes read first; the header usually fits in them."""
CHANGED: Final = "it was changed in the meantime"


@dataclass(frozen=True, slots=True)
class Checksum:
    """The checksum of all bytes, as reported by the source. `algorithm` is its name in hashlib."""

    algorithm: str
    digest: bytes


class Source(Protocol):
    """A file of bytes. All methods except `close` may raise SourceFailed; `read` and `open` retry first.

    If the server does not report the size, `size` is None after `open`, and the code that reads the header sets it.
    """

    size: int | None
    checksum: Checksum | None

    @property
    def has_ranges(self) -> bool:
        """Whether shards can read ranges of the source at the same URL. Valid once the source is open."""

    async def open(self) -> bytes:
        """Open the source and set `size` and `checksum`.

        Returns the first HEAD_BYTES, or all bytes if there are fewer.
        """

    async def read(self, begin: int, end: int) -> Buffer:
        """Return the bytes from `begin` up to `end` of the version that `open` found.

        Callers request spans in ascending order, except for the bytes of a header.
        """

    async def close(self) -> Any:
        """Release connections and files."""


class SourceFailed(Exception):
    """The source cannot be imported. The message says why, but never includes URL queries, credentials or addresses."""

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint

    def as_error(self, shown: str) -> GatherError:
        """Return the import_failed error; `shown` is the URL without its query."""
        return import_failed(shown, self.why, self.hint)


class Interrupted(Exception):
    """The source's response was incomplete, but a retry after `retry_after` seconds may succeed."""

    def __init__(self, why: str, retry_after: float = 0.0) -> None:
        super().__init__(why)
        self.why = why
        self.retry_after = retry_after


def import_failed(shown: str, why: str, hint: str | None = None) -> GatherError:
    """Return the import_failed error; `shown` is the source's URL without its query."""
    return GatherError("import_failed", f"{shown} could not be imported: {why}", pointer="/url", hint=hint)
