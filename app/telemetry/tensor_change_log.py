"""The change log: one line for each upload, removal, import and alias move, and for a sample of the scatters.

A line says what was changed and by whom: the label of the API key, the client's address and the request id. Routes
report their changes (`RequestContext.changes`), and this module writes the lines.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import Any, Final, NamedTuple

changes_logger = logging.getLogger("gathernd.changes")

SCATTERED: Final = "tensor scattered"
UPSERTED: Final = "rows upserted"
ROWS_REMOVED: Final = "rows removed"
_SAMPLED: Final = (SCATTERED, UPSERTED, ROWS_REMOVED)
_SAMPLE_S: Final = 1.0
"""Seconds during which each process writes at most one line about scatters of a tensor.

The same applies to upserts and to removals.
"""


class Caller(NamedTuple):
    """The caller who made a change. `key` is the label of the API key, and `client` is the address.

    Each is None if unknown.
    """

    request_id: str
    key: str | None
    client: str | None


class Change(NamedTuple):
    """A change. `what` is the log line's message; `name` is the name of a tensor or alias.

    `version` is the number of the version that was created, changed or removed, or None for all versions. `size` is the
    number of bytes of the tensor, or of a scatter's body. `tensor` is the version that an alias now points to. `note`
    is the note of a new version. `replicas` is the number of shards that will hold each range.
    """

    what: str
    name: str
    version: int | None = None
    size: int | None = None
    tensor: str | None = None
    note: str | None = None
    replicas: int | None = None


def write_change(change: Change, caller: Caller | None, **more: Any) -> None:
    """Write a change's line, with the additional fields in `more`. Fields that are None are left out. Thread-safe."""
    fields = {
        "name": change.name,
        "version": change.version,
        "bytes": change.size,
        "tensor": change.tensor,
        "note": change.note,
        "replicas": change.replicas,
        **more,
    }
    if caller is not None:
        fields |= caller._asdict()
    known = {name: value for name, value in fields.items() if value is not None}
    changes_logger.info(change.what, extra={"fields": known})


class _Sample:
    """The scatters of one tensor since `since`, when the last line about them was written.

    `left_out` counts those without a line.
    """

    __slots__ = ("left_out", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.left_out = 0


class ChangeLog:
    """Writes the lines for the requests of one process, from its event loop.

    A tensor may receive thousands of scatters a second. The first scatter gets a line. Scatters within the following
    second are counted without a line, and the next line reports their number (`left_out`). The record of a tensor is
    dropped a second after its last line.
    """

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str], _Sample] = {}

    def write(self, change: Change, caller: Caller) -> None:
        """Write the line of a change.

        A change of a frequent kind is just counted if the tensor had a line of that kind within the last second.
        """
        if change.what not in _SAMPLED:
            write_change(change, caller)
            return
        now = monotonic()
        sample = self._samples.get((change.what, change.name))
        if sample is None:
            self._samples[change.what, change.name] = _Sample(now)
            write_change(change, caller)
        elif now - sample.since < _SAMPLE_S:
            sample.left_out += 1
        else:
            write_change(change, caller, left_out=sample.left_out or None)
            sample.since, sample.left_out = now, 0

    def sweep(self, *, stopping: bool = False) -> None:
        """Write how many scatters got no line, for tensors whose second is over. Call this regularly and at the end."""
        now = monotonic()
        for (what, name), sample in list(self._samples.items()):
            if not stopping and now - sample.since < _SAMPLE_S:
                continue
            if sample.left_out:
                write_change(Change(what, name), None, left_out=sample.left_out)
                sample.since, sample.left_out = now, 0
            else:
                del self._samples[what, name]
