"""One version on its way to the shards: the bytes of one range after those of another, to all its replicas at once.

The last byte is kept back until the version is committed: nothing can be whole, and current, before that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ssl import SSLContext
from typing import Final, NamedTuple, TypeAlias

from app.cluster.coordinator.coordinator_client import RunningPublication, StaleMap, unavailable
from app.cluster.coordinator.messages import RangeKey, Target
from app.cluster.shard.shard_http import RangeWriter, ShardClient, ShardFailed
from app.cluster.shard_map import ShardMap, range_shape, rows_of
from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType

KEPT_BACK: Final = 1
"""Bytes of the table that are written when it is committed."""


class VersionSize(NamedTuple):
    """How many bytes a version has: `total` in all, `row` about as many for a row, as machines are chosen by."""

    total: int
    row: int


BytesBefore: TypeAlias = Callable[[int], int]
"""How many bytes come before a row."""


class VersionWriter:
    """One version on its way. All methods block, on shards and the coordinator."""

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        size: VersionSize,
        bytes_before: BytesBefore,
        publish: Callable[[str, str], RunningPublication],
        key: str | None,
        tls: SSLContext | None = None,
    ) -> None:
        """`publish` begins the publication, with `Publish.expected` and `sha256`; shards are asked with `key`.

        Raises StaleMap, and what the coordinator refuses with.
        """
        self._dtype = dtype
        self._shape = shape
        self._size = size
        self._bytes_before = bytes_before
        self._publish = publish
        self._key = key
        self._tls = tls
        self._kept_back = b""
        self._place = 0
        """Bytes that have been written."""
        self._taken = 0
        """Bytes that have come."""
        self._targets: Sequence[Target] = ()
        self._writers: list[RangeWriter] = []
        self._range: RangeKey | None = None
        self.publication: RunningPublication | None = None
        if rows_of(shape):  # a table without rows would be whole, and published, at once
            self.publication = publish("*", "")
            try:
                self._targets = self.publication.targets()
            except BaseException:
                self.publication.end()
                raise

    def write(self, piece: Buffer) -> None:
        """The next bytes in their final form. Raises shard_unavailable and insufficient_storage."""
        view = memoryview(piece)
        if not view:
            return
        until = self._size.total - KEPT_BACK
        if self._taken + len(view) > until:
            self._kept_back = bytes(view[until - self._taken :])
            view = view[: until - self._taken]
        self._taken += len(view)
        try:
            self._send(view)
        except StaleMap as stale:
            raise unavailable(f"the table has changed while it was written: {stale}") from None

    def commit(self, expected: str, digest: str) -> tuple[int, ShardMap]:
        """Write the rest, and have the version published: its number, and a map that has it. `digest` is of all bytes.

        The version is published only where `expected` is current then; see `Publish.expected`. Raises StaleMap and what
        the coordinator refuses with, shard_unavailable and insufficient_storage.
        """
        if self.publication is None:
            self.publication = self._publish(expected, digest)
        published = self.publication.commit(expected, digest)
        self.publication.check(self._targets)
        self._send(memoryview(self._kept_back))
        if not self._size.total:
            for key in self._keys:
                self._begin(key)
                self._end()
        try:
            return published()
        finally:
            self.publication.end()

    def abandon(self) -> None:
        """Leave nothing: the coordinator has what was written dropped, since nobody asks for it any more."""
        self._close()
        if self.publication is not None:
            self.publication.end()

    @property
    def _keys(self) -> Sequence[RangeKey]:
        return sorted({target.key for target in self._targets}, key=lambda key: key.start)

    def _send(self, view: memoryview) -> None:
        while len(view):
            if self._range is None:
                self._begin(next(key for key in self._keys if self._bytes_before(key.stop) > self._place))
            assert self._range is not None
            end = self._bytes_before(self._range.stop)
            part = view[: end - self._place]
            for writer in self._writers:
                _try(lambda: writer.write(part))  # noqa: B023  (called at once)
            self._place += len(part)
            view = view[len(part) :]
            if self._place == end:
                self._end()

    def _begin(self, key: RangeKey) -> None:
        """Connect to all shards that are to have a range."""
        assert self.publication is not None
        self.publication.check(self._targets)
        self._range = key
        shape = ",".join(map(str, range_shape(self._shape, key.start, key.stop)))
        size = self._bytes_before(key.stop) - self._bytes_before(key.start)
        for target in self._targets:
            if target.key == key:
                shard = ShardClient(target.address, self._key, tls=self._tls)
                _try(lambda: self._writers.append(RangeWriter(shard, key, self._dtype.name, shape, size)))  # noqa: B023

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


BeginWriting: TypeAlias = Callable[[VersionSize, BytesBefore], VersionWriter]
"""Begins to write a version of this size. Raises what the coordinator refuses with."""
