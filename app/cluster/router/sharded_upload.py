"""An upload whose rows go on to the shards as they arrive, in bounded memory: it is checked and hashed on its way.

Rows come in order, so that one range after the other is written, to all its replicas side by side. The last bytes of
the table are kept back until the upload is committed: no version can be whole, and current, before that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from app.cluster.coordinator.coordinator_client import RunningPublication, StaleMap, unavailable
from app.cluster.coordinator.messages import RangeKey, Target
from app.cluster.shard.shard_http import RangeWriter, ShardClient, ShardFailed
from app.cluster.shard_map import ShardMap
from app.errors import GatherError
from app.store.files.write_uploaded_tensor import Upload
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType
from app.tensors.shape_limits import Limits

KEPT_BACK: Final = 1
"""Bytes of the table that are written when it is committed."""


class ShardedUpload(Upload):
    """One table on its way. `publish` begins its publication; all methods block, on shards and the coordinator."""

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        limits: Limits,
        publish: Callable[[str, int, str], RunningPublication],
        key: str | None,
        *,
        swap: bool = False,
    ) -> None:
        """`publish` takes the content id, the bytes of a row, and `Publish.expected`.

        Raises limit_exceeded, StaleMap, and what the coordinator refuses with.
        """
        super().__init__(Path(), dtype, shape, limits, swap=swap)
        assert self.expected is not None, "strings have no size of their own"
        self._key = key
        self._row_bytes = self.expected // shape[0] if shape[0] else 0
        self._kept_back = b""
        self._place = 0
        """Bytes that have been written."""
        self._targets: list[Target] = []
        self._writers: list[RangeWriter] = []
        self._range: RangeKey | None = None
        self._publication: RunningPublication | None = None
        self._publish = publish
        if shape[0]:  # a table without rows would be whole, and published, at once
            self._publication = publish(self.id, self._row_bytes, "*")
            try:
                self._targets = self._publication.targets()
            except BaseException:
                self._publication.end()
                raise

    def write_out(self, piece: Buffer) -> None:
        """The next bytes in their final form. Raises shard_unavailable and insufficient_storage."""
        assert self.expected is not None
        view = memoryview(piece)
        if not view:
            return
        until = self.expected - KEPT_BACK
        if self._written + len(view) > until:
            self._kept_back = bytes(view[until - self._written :])
            view = view[: until - self._written]
        try:
            self._send(view)
        except StaleMap as stale:
            raise unavailable(f"the table has changed while it was written: {stale}") from None

    def commit(self, expected: str) -> tuple[int, ShardMap]:
        """Write the rest, and have the version published: its number, and a map that has it.

        The version is published only where `expected` is current then; see `Publish.expected`. Raises StaleMap and what
        the coordinator refuses with, shard_unavailable and insufficient_storage.
        """
        if self._publication is None:
            self._publication = self._publish(self.id, 0, expected)
        published = self._publication.commit(expected, self._digest.hexdigest())
        self._publication.check(self._targets)
        self._send(memoryview(self._kept_back))
        if not self._row_bytes:
            for key in self._keys:
                self._begin(key)
                self._end()
        try:
            return published()
        finally:
            self._publication.end()

    def finish(self) -> None:
        """The bytes have ended: check their number. Raises element_count_mismatch."""
        self.check_count()

    def abandon(self) -> None:
        """Leave nothing: the coordinator has what was written dropped, since nobody asks for it any more."""
        self._close()
        if self._publication is not None:
            self._publication.end()

    @property
    def _keys(self) -> Sequence[RangeKey]:
        return sorted({target.key for target in self._targets}, key=lambda key: key.start)

    def _send(self, view: memoryview) -> None:
        while len(view):
            if self._range is None:
                self._begin(next(key for key in self._keys if key.stop * self._row_bytes > self._place))
            assert self._range is not None
            part = view[: self._range.stop * self._row_bytes - self._place]
            for writer in self._writers:
                _try(lambda: writer.write(part))  # noqa: B023  (called at once)
            self._place += len(part)
            view = view[len(part) :]
            if self._place == self._range.stop * self._row_bytes:
                self._end()

    def _begin(self, key: RangeKey) -> None:
        """Connect to all shards that are to have a range."""
        assert self._publication is not None
        self._publication.check(self._targets)
        self._range = key
        rows = key.stop - key.start
        shape = ",".join(map(str, (rows, *self.shape[1:])))
        for target in self._targets:
            if target.key == key:
                shard = ShardClient(target.address, self._key)
                size = rows * self._row_bytes
                _try(lambda: self._writers.append(RangeWriter(shard, key, self.dtype.name, shape, size)))  # noqa: B023

    def _end(self) -> None:
        """All replicas have to say that they have the range, durably."""
        for writer in self._writers:
            _try(writer.finish)
        self._close()

    def _close(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()
        self._range = None


def _try(work: Callable[[], object]) -> None:
    """Raises shard_unavailable and insufficient_storage where a shard does not do its part."""
    try:
        work()
    except ShardFailed as failure:
        if failure.code == "insufficient_storage":
            raise GatherError("insufficient_storage", f"a shard has no room: {failure}") from None
        raise unavailable(f"a shard could not be written: {failure}") from None
