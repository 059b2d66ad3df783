"""The metadata of a tensor, and conditions on its ETag."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from app.errors import GatherError
from app.store.catalogue.catalogue_rows import Row
from app.store.files.regular_file import open_regular
from app.store.files.tensor_file import DAMAGED, PAGE, Description, decode_page, etag_of


@dataclass(frozen=True, slots=True)
class Metadata:
    """The metadata of a version of a tensor. Times are nanoseconds since 1970; `size` is the bytes of the items.

    `version` is its number, `versions` the numbers of all versions of the tensor that are kept, the oldest first.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int
    etag: str
    sha256: str
    created: int
    modified: int
    prefault: bool
    lock: bool
    damaged: bool = False
    version: int = 1
    versions: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class Conditions:
    """If-Match and If-None-Match: the ETags they list, ("*",) for any; None where they are not given."""

    match: tuple[str, ...] | None = None
    none_match: tuple[str, ...] | None = None

    def check(self, etag: str | None, kind: str = "tensor") -> None:
        """Raises precondition_failed unless they hold for a tensor with this ETag (None: there is none).

        `kind` is what the caller names it.
        """
        if self.match is not None and (etag is None or (etag not in self.match and self.match != ("*",))):
            raise GatherError(
                "precondition_failed",
                "If-Match does not hold: " + (f"there is no such {kind}" if etag is None else f"the ETag is {etag}"),
                hint=f"Leave out If-Match, or {'upload the tensor' if kind == 'tensor' else f'make the {kind}'} first."
                if etag is None
                else f"Read the {kind} again, and send 'If-Match: {etag}' if the change still holds.",
            )
        if self.none_match is not None and etag is not None and (etag in self.none_match or self.none_match == ("*",)):
            raise GatherError(
                "precondition_failed",
                f"If-None-Match does not hold: the ETag is {etag}",
                hint=f"Send 'If-Match: {etag}' in place of If-None-Match to "
                f"{'replace' if kind == 'tensor' else 'move'} the {kind}, or use another name.",
            )


ALWAYS = Conditions()


def read_first_page(path: Path) -> tuple[Description, bytes]:
    """A file's description and first page. Raises BadFile and OSError."""
    fd = open_regular(path)
    try:
        page = os.pread(fd, PAGE, 0)
        return decode_page(page, os.fstat(fd).st_size), page
    finally:
        os.close(fd)


def metadata_of(row: Row, state: int, modified: int, versions: Sequence[int]) -> Metadata:
    """The metadata of a version of a tensor, whose file has `state` as its VERSION word and this time of change."""
    return Metadata(
        row.name, row.dtype, row.shape, row.size, etag_of(row.content, (state & ~DAMAGED) >> 1), row.sha256,
        row.created, modified, row.prefault, row.lock, bool(state & DAMAGED), row.version, tuple(versions),
    )  # fmt: skip


def damaged_metadata(row: Row, versions: Sequence[int]) -> Metadata:
    """The metadata of a tensor whose file cannot be read; its ETag matches that of no content."""
    return replace(metadata_of(row, DAMAGED, row.modified, versions), etag=f'"{row.content}-damaged"')
