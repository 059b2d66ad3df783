"""What is said of tensors: metadata, conditions, quotas, and how they are read from a file's first page."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from app.errors import GatherError
from app.store.layout import DAMAGED, PAGE, Description, Word, decode_page


@dataclass(frozen=True, slots=True)
class Quota:
    """The most that a store takes: bytes of all files of tensors (None: what the disk holds) and number of tensors."""

    total: int | None = None
    tensors: int = 10_000


@dataclass(frozen=True, slots=True)
class Metadata:
    """What is known of a tensor. Times are nanoseconds since 1970; `size` is the bytes of the items."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    etag: str
    created: int
    modified: int
    prefault: bool
    lock: bool
    damaged: bool = False


@dataclass(frozen=True, slots=True)
class Conditions:
    """If-Match and If-None-Match: the ETags they list, ("*",) for any; None where they are not given."""

    match: tuple[str, ...] | None = None
    none_match: tuple[str, ...] | None = None

    def check(self, etag: str | None) -> None:
        """Raises precondition_failed unless they hold for a tensor with this ETag (None: there is none)."""
        if self.match is not None and (etag is None or (etag not in self.match and self.match != ("*",))):
            raise GatherError(
                "precondition_failed",
                "If-Match does not hold: " + ("there is no such tensor" if etag is None else f"the ETag is {etag}"),
            )
        if self.none_match is not None and etag is not None and (etag in self.none_match or self.none_match == ("*",)):
            raise GatherError("precondition_failed", f"If-None-Match does not hold: the ETag is {etag}")


ALWAYS = Conditions()


@dataclass(frozen=True, slots=True)
class Old:
    """What a change needs to know of the content it replaces; `id` is empty where that is damaged."""

    id: str
    etag: str
    created: int
    floor: int


def peek(path: Path) -> tuple[Description, bytes]:
    """A file's description and first page. Raises BadFile and OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        page = os.pread(fd, PAGE, 0)
        return decode_page(page, os.fstat(fd).st_size), page
    finally:
        os.close(fd)


def read_metadata(description: Description, page: bytes) -> Metadata:
    """What the first page of a file says of the tensor."""
    words = memoryview(page).cast("Q")
    stamp = words[Word.STAMP]
    metadata = metadata_of(description, (stamp & ~DAMAGED) >> 1, words[Word.MODIFIED])
    return replace(metadata, damaged=bool(stamp & DAMAGED))


def metadata_of(description: Description, sequence: int, modified: int) -> Metadata:
    """What is known of a content after `sequence` scatters."""
    return Metadata(
        description.name, description.dtype, description.shape, description.size, description.etag(sequence),
        description.created, modified, description.prefault, description.lock,
    )  # fmt: skip
