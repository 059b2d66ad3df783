"""What is true of scatters in a simulated cluster: which records were committed, and what their rows are then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.cluster.catalogue.records import Catalogue
from app.cluster.replication.reads import READ_LEASE_S
from tests.cluster.simulation.truth import Violation


@dataclass(frozen=True, slots=True)
class Scatter:
    """One scatter to one range: 1 is added to each of `rows`, or they are set to `value`."""

    key: str
    rows: tuple[int, ...]
    value: int | None = None


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record of a log: rows by number, with their new values. `sequence` and `epoch` name it."""

    sequence: int
    epoch: int
    scatter: Scatter
    values: Mapping[int, int]


def record_of(scatter: Scatter, sequence: int, epoch: int, before: Mapping[int, int]) -> LogRecord:
    """The record of a scatter to rows whose values are `before`; those that are missing there are 0."""
    new = {row: before.get(row, 0) + 1 if scatter.value is None else scatter.value for row in scatter.rows}
    return LogRecord(sequence, epoch, scatter, new)


@dataclass
class RangeTruth:
    """A range: its committed records in order, and the values of its rows after each; all rows are 0 at first."""

    records: list[LogRecord] = field(default_factory=list)
    values: list[Mapping[int, int]] = field(default_factory=lambda: [{}])
    keys: dict[str, int] = field(default_factory=dict)
    acknowledged: list[tuple[float, int]] = field(default_factory=list)
    """When sequences were acknowledged, and the highest one by then."""


@dataclass
class ScatterTruth:
    """Sees each record that a replica applies, each answer and each read."""

    latest: Callable[[], Catalogue]
    """The catalogue as the database has it."""
    has_record: Callable[[str, str, LogRecord], bool]
    """Whether the disk of a node has a record of a range, or has lost its rows."""
    ranges: defaultdict[str, RangeTruth] = field(default_factory=lambda: defaultdict(RangeTruth))

    def applied(self, node: str, tensor: str, record: LogRecord) -> None:
        """A replica has applied a record: the same as all others, and each replica in sync has it."""
        truth = self.ranges[tensor]
        if record.sequence <= len(truth.records):
            known = truth.records[record.sequence - 1]
            if (known.epoch, known.scatter.key) != (record.epoch, record.scatter.key):
                raise Violation(f"{node} has applied {record} in {tensor}, where others have {known}")
            return
        if record.sequence != len(truth.records) + 1:
            raise Violation(f"{node} has applied {record} in {tensor} after {len(truth.records)} records")
        if (first := truth.keys.get(record.scatter.key)) is not None:
            raise Violation(f"{node} has applied {record.scatter} in {tensor} twice: {first} and {record.sequence}")
        opened = self.latest().ranges.get(tensor)
        for other in () if opened is None else opened.in_sync:
            if not self.has_record(other, tensor, record):
                raise Violation(f"{node} has applied {record} in {tensor}, and {other}, in sync, does not have it")
        before = truth.values[-1]
        if record_of(record.scatter, record.sequence, record.epoch, before) != record:
            raise Violation(f"{record} in {tensor} does not follow from {before}")
        truth.records.append(record)
        truth.keys[record.scatter.key] = record.sequence
        truth.values.append({**before, **record.values})

    def acknowledged(self, tensor: str, key: str, sequence: int, now: float) -> None:
        """A scatter to a range was acknowledged."""
        truth = self.ranges[tensor]
        if truth.keys.get(key) != sequence:
            raise Violation(f"{key} in {tensor} was acknowledged as {sequence}, and is {truth.keys.get(key)}")
        highest = max(sequence, truth.acknowledged[-1][1]) if truth.acknowledged else sequence
        truth.acknowledged.append((now, highest))

    def read(self, node: str, tensor: str, sequence: int, rows: Sequence[int], values: Sequence[int]) -> None:
        """A replica has read rows: all at one committed sequence."""
        truth = self.ranges[tensor]
        if sequence > len(truth.records):
            raise Violation(f"{node} serves {tensor} at {sequence}, and {len(truth.records)} are committed")
        expected = [truth.values[sequence].get(row, 0) for row in rows]
        if list(values) != expected:
            raise Violation(f"{node} serves {list(values)} of {tensor} at {sequence} instead of {expected}")

    def check_fresh(self, node: str, tensor: str, sequence: int, now: float) -> None:
        """What was acknowledged before the read lease is in a read."""
        for at, acknowledged in reversed(self.ranges[tensor].acknowledged):
            if at < now - READ_LEASE_S:
                if acknowledged > sequence:
                    raise Violation(f"{node} serves {tensor} at {sequence}; {acknowledged} was acknowledged at {at}")
                return

    def settled(self, node: str, tensor: str, applied: int, last: int, values: Mapping[int, int]) -> None:
        """When all faults are over a replica in sync has all records, and no other."""
        truth = self.ranges[tensor]
        if applied != last or applied != len(truth.records):
            raise Violation(f"{node} has {tensor} at {applied} of {last}, and {len(truth.records)} are committed")
        if dict(values) != dict(truth.values[-1]):
            raise Violation(f"{node} has {values} in {tensor} instead of {truth.values[-1]}")
