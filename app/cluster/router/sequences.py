"""The highest sequence of each range of a catalogue that is known to this process of the router.

A sequence counts the committed scatters of a range. A later response on a connection must not show an older state than
the connection's client has already read or has had acknowledged. Since a connection belongs to one process, each read
requires the highest sequence that the process has learned, from any shard and for any client. The ETag of a table
contains the sum of its ranges' sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from app.cluster.router.row_sinks import BadAnswer
from app.cluster.shard_map import RowRange, ShardedVersion, ShardMap, content_of
from app.store.files.tensor_file import sequence_in

NOTHING_READ: Final[Mapping[str, int]] = {}


class Sequences:
    """The highest sequence of each range that this process has learned, by the name of its tensor.

    A shard may report the first scatter to a range before the map shows that it is open, so any range of a catalogue
    may have a sequence.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._rows: dict[str, tuple[int, int]] = {}
        """The row count and its sequence, for each range that upserts or removals have changed."""
        self._contents: frozenset[str] = frozenset()
        """The content IDs of all ranges with a known sequence."""

    def record(self, tensor: str, sequence: int) -> None:
        """Record a shard's report that a range is at `sequence`, which is committed."""
        known = self._known.get(tensor, 0)
        if sequence > known:
            self._known[tensor] = sequence
            if not known:
                self._contents |= {content_of(tensor)}

    def record_rows(self, tensor: str, sequence: int, rows: int) -> None:
        """Record a shard's report that a range of a table with keys has `rows` rows at the committed `sequence`."""
        self.record(tensor, sequence)
        if sequence and sequence >= self._rows.get(tensor, (0, 0))[0]:
            self._rows[tensor] = sequence, rows

    def rows(self, version: ShardedVersion) -> list[int]:
        """Return the row count of each range of a version, as last reported or, if there is no report, as uploaded."""
        return [self._rows.get(one.tensor, (0, one.rows))[1] for one in version.ranges]

    def knows(self, content_id: str) -> bool:
        """Return whether a range with this content ID is known to have changed."""
        return content_id in self._contents

    def lowest_accepted(self, tensor: str) -> int:
        """Return the lowest sequence that a read of the range accepts."""
        return self._known.get(tensor, 0)

    def etag(self, version: ShardedVersion, read: Mapping[str, int] = NOTHING_READ) -> str:
        """Return a version's ETag, using known sequences for the ranges whose sequences are not in `read`."""
        known = self._known
        return version.etag_at(sum(read.get(one.tensor, known.get(one.tensor, 0)) for one in version.ranges))

    def keep_only(self, shard_map: ShardMap) -> None:
        """Discard the ranges whose content IDs are not in the map."""
        if self._known:
            self._contents &= {version.content_id for table in shard_map.tables.values() for version in table.versions}
            known = self._known.items()
            self._known = {tensor: sequence for tensor, sequence in known if self.knows(content_of(tensor))}
            self._rows = {tensor: rows for tensor, rows in self._rows.items() if tensor in self._known}


def sequence_check(sequences: Sequences, one: RowRange, read: dict[str, int]) -> Callable[[str | None], None]:
    """Return a check for responses from a range of a catalogue: they must not be older than the known sequence.

    The check stores the response's sequence in `read`.
    """
    tensor, least = one.tensor, sequences.lowest_accepted(one.tensor)

    def check(etag: str | None) -> None:
        sequence = sequence_of(etag)
        if sequence < least:
            raise BadAnswer(f"the answer is of sequence {sequence}, and {least} is known", stale=True)
        read[tensor] = sequence
        sequences.record(tensor, sequence)

    return check


def etag_check(wanted: str) -> Callable[[str | None], None]:
    """Return a check for responses from a range whose ETag is in the map."""

    def check(etag: str | None) -> None:
        if etag != wanted:
            raise BadAnswer(f"the answer is of the content {etag}, not {wanted}", stale=True)

    return check


def sequence_of(etag: str | None) -> int:
    """Return the sequence in the ETag of a shard's tensor. Raises BadAnswer."""
    try:
        return sequence_in(etag or "")
    except ValueError as error:
        raise BadAnswer(str(error)) from None
