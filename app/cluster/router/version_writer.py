"""Write one version, segment by segment: send each segment's rows to all its replicas concurrently, and publish at the
end.

While the shards of one segment are making it durable, the next segment begins. A shard that is lost midway is skipped;
once all rows have arrived, another shard pulls the segment from a replica that has it. For an import, the shards
themselves may pull the rows; see `pulled_from`.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from app.api.route_table import path_of
from app.catalogue.conditions import Conditions
from app.cluster.catalogue import transitions
from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.records import Catalogue, Change, Options, Segment, Version
from app.cluster.catalogue.transitions import unavailable
from app.cluster.key_placement import KeyPlacement
from app.cluster.router.running_uploads import RunningUploads
from app.cluster.router.segment_writer import RAW, Pulling, SegmentBody, SegmentWriter, ShardAccess, ShardFailed
from app.cluster.shard.pull_order import PullOrder, PullSource
from app.cluster.shard_map import rows_of, shard_tensor
from app.errors import GatherError
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DType

_FINISHING: Final = 8
"""Maximum number of segments that may be finishing while the next one is being written."""
_PULLS: Final = 8
"""Maximum number of segments that are pulled concurrently."""
_LOOK_S: Final = 0.5
_ATTEMPTS: Final = 3
"""Number of shards to try as replacements for a lost one."""
logger = logging.getLogger("gathernd")

Found = TypeVar("Found")
BytesBefore: TypeAlias = Callable[[int], int]
"""A function that returns the number of bytes before a row."""


class VersionWriter:
    """One version that is being written. All methods block on shards and etcd.

    They may raise shard_unavailable and insufficient_storage.
    """

    keys: KeyPlacement | None = None
    """How the version's rows are placed by key, or None if they have no keys."""

    def __init__(
        self,
        client: CatalogueClient,
        access: ShardAccess,
        table: str,
        dtype: DType,
        shape: tuple[int, ...],
        bytes_before: BytesBefore,
        uploads: RunningUploads,
        replicas: int | None = None,
    ) -> None:
        """Assign shards to the segments: `replicas` to each segment, if given.

        Raises the errors of `transitions.begin_upload`.
        """
        self._uploads = uploads
        self.content_id = uploads.begin()
        self._client = client
        self._access = access
        self._pulling = Pulling(access)
        self._table = table
        self._replicas = replicas
        self._dtype = dtype
        self._shape = shape
        self._bytes_before = bytes_before
        self._place = 0
        """Number of bytes written so far."""
        self._writers: dict[int, list[SegmentWriter]] = {}
        """The writers of each segment whose writing has begun, by the segment's start."""
        self._finishing: deque[Segment] = deque()
        self._lost: set[str] = set()
        """Shards that have failed. They receive no more rows of this version."""
        try:
            self._segments = list(self._upload_segments(client.transact(self._begin_upload)))
        except BaseException:
            uploads.end(self.content_id)
            raise
        self._next = 0
        """The index of the segment that is being written or, between segments, of the next one."""

    def _begin_upload(self, catalogue: Catalogue) -> Change | None:
        parts = self._parts(catalogue.options)
        return transitions.begin_upload(
            catalogue, self.content_id, self._table, parts, self._replicas, self._uploads.router
        )

    def _parts(self, options: Options) -> Sequence[Segment]:
        """Return the segments, before shards are assigned to them."""
        rows = rows_of(self._shape)
        return [
            Segment(start, stop, self._bytes_before(stop) - self._bytes_before(start))
            for start, stop in transitions.segment_bounds(rows, ranges_for(self._bytes_before(rows), options))
        ]

    def write(self, piece: Buffer) -> None:
        """Write the next bytes in their final form."""
        view = memoryview(piece)
        while view.nbytes:
            segment = self._current()
            end = self._bytes_before(segment.stop)
            part = view[: end - self._place]
            for writer in self._writers[segment.start]:
                writer.write(part)
            self._check(segment)
            self._place += len(part)
            view = view[len(part) :]
            if self._place == end:
                self._end(segment)

    def pulled_from(self, origin: str) -> Generator[Buffer, None, None]:
        """Make the shards pull all segments from the source of an import, instead of using `write` and `finish`.

        Yields the bytes. Segments are pulled in parallel. One shard of each segment pulls it from `origin`, and the
        others pull it from that shard. The bytes are read from the shards in order. An empty piece means that the next
        bytes have not arrived yet.
        """
        with ThreadPoolExecutor(_PULLS, "pull-segment") as threads:
            try:
                begun = [
                    (segment, threads.submit(self._pull_everywhere, segment, origin)) for segment in self._segments
                ]
                for segment, pulling in begun:
                    outcome = yield from self._wait_for_pull(pulling)
                    settling = threads.submit(self._complete, segment, *outcome, origin)
                    yield from self._rows_of((yield from self._wait_for_pull(settling)))
            finally:
                self._pulling.give_up()
                threads.shutdown(wait=False, cancel_futures=True)

    def _wait_for_pull(self, pulling: Future[Found]) -> Generator[Buffer, None, Found]:
        """Wait until shards have finished pulling.

        Yields empty pieces while waiting, and gives up on shards that are no longer alive.
        """
        while not wait((pulling,), _LOOK_S).done:
            self._pulling.keep_only(self._client.catalogue.alive)
            yield b""
        return pulling.result()

    def _pull_everywhere(self, segment: Segment, origin: str) -> tuple[dict[str, str], dict[str, ShardFailed]]:
        """Make all shards of a segment pull it.

        Returns the digests on the shards that have the segment, and the failures of the others.
        """
        digests: dict[str, str] = {}
        failures: dict[str, ShardFailed] = {}
        for node in segment.nodes:
            try:
                segment = replace(segment, sha256=self._pull(segment, node, list(digests), origin))
            except ShardFailed as failure:
                failures[node] = failure
            else:
                digests[node] = segment.sha256
        return digests, failures

    def _rows_of(self, segment: Segment) -> Iterator[Buffer]:
        """Yield the bytes of a segment from one of its shards. If that shard fails midway, the next one continues."""
        first, count = 0, segment.row_count
        row = segment.size // count
        failures = []
        for node in segment.nodes:
            address = self._client.catalogue.nodes[node].address
            try:
                for piece in self._pulling.read(node, address, self._tensor(segment), (first, count), row):
                    first += len(piece) // row
                    yield piece
            except ShardFailed as failure:
                failures.append(failure)
            else:
                return
        raise _error(failures)

    def finish(self) -> None:
        """Wait until each segment is complete and durable on all its shards.

        Call this after all bytes have been written.
        """
        while self._next < len(self._segments):  # segments without any bytes
            self._end(self._current())
        while self._finishing:
            self._finish(self._finishing.popleft())

    def publish(
        self, conditions: Conditions, sha256: str, keep: int, origin: str, note: str
    ) -> tuple[Version, Catalogue]:
        """Publish the upload as the current version. Returns the version, and a catalogue that includes it.

        `sha256` is the digest of all items. Raises the errors of `transitions.publish`.
        """
        rows = rows_of(self._shape)
        version = Version(
            0, self.content_id, self._dtype, self._shape, tuple(self._segments), time.time_ns(), sha256,
            self._bytes_before(rows), origin, note, self.keys,
        )  # fmt: skip

        def publish(catalogue: Catalogue) -> Change | None:
            return transitions.publish(catalogue, self._table, version, keep, self._replicas, conditions)

        catalogue = self._client.transact(publish)
        found = self._published_version(catalogue)
        if found is None:  # another version has been published since then and has replaced it
            raise unavailable(f"the new version of {self._table!r} was superseded and removed at once")
        self._uploads.end(self.content_id)
        return found, catalogue

    def _published_version(self, catalogue: Catalogue) -> Version | None:
        table = catalogue.tables.get(self._table)
        versions = () if table is None else table.versions
        return next((one for one in versions if one.content_id == self.content_id), None)

    def abandon(self) -> None:
        """Remove everything unless the version has been published.

        The reconciler then drops the rows that were written.
        """
        for writers in self._writers.values():
            for writer in writers:
                writer.give_up()
        self._pulling.give_up()
        self._uploads.end(self.content_id)

    # One segment

    def _current(self) -> Segment:
        """Return the segment that is being written. Begin it, and any earlier segments without bytes, if necessary."""
        while True:
            segment = self._segments[self._next]
            if segment.start not in self._writers:
                segment = self._begin(segment)
            if self._place < self._bytes_before(segment.stop) or self._next == len(self._segments) - 1:
                return segment
            self._end(segment)

    def _begin(self, segment: Segment) -> Segment:
        """Connect to all shards of a segment. Shards that failed earlier are first replaced by others."""
        for node in self._lost & set(segment.nodes):
            with suppress(GatherError):  # if no other shard has enough space, try the failed one anyway
                segment = self._move_to_other_shard(segment, node)
        body = self._body(segment)
        self._writers[segment.start] = [
            SegmentWriter(
                self._access,
                node,
                self._client.catalogue.nodes[node].address,
                body,
                lambda node=node: node not in self._client.catalogue.alive,  # type: ignore[misc]
            )
            for node in segment.nodes
        ]
        return segment

    def _body(self, segment: Segment) -> SegmentBody:
        """Return the description of a segment in the form that is sent to a shard."""
        shape = ",".join(map(str, segment.shape(self._shape)))
        path = f"{path_of('putTensor', name=self._tensor(segment))}?dtype={self._dtype.name}&shape={shape}&keep=1"
        return SegmentBody(path, RAW, segment.size, segment.size)

    def _check(self, segment: Segment) -> None:
        """Raise an error unless a shard still accepts the rows of a segment."""
        writers = self._writers[segment.start]
        if all(writer.failure is not None for writer in writers):
            raise _error([writer.failure for writer in writers if writer.failure is not None])

    def _end(self, segment: Segment) -> None:
        for writer in self._writers[segment.start]:
            writer.end()
        self._finishing.append(segment)
        self._next += 1
        if len(self._finishing) > _FINISHING:
            self._finish(self._finishing.popleft())

    def _finish(self, segment: Segment) -> None:
        """Wait until a segment is complete on all its shards. Shards that fail are replaced by others."""
        writers = self._writers[segment.start]
        for writer in writers:
            writer.finish()
        self._check(segment)
        digests = {writer.node: writer.digest for writer in writers if writer.failure is None}
        self._complete(segment, digests, {one.node: one.failure for one in writers if one.failure is not None})

    def _complete(
        self, segment: Segment, digests: Mapping[str, str], failures: Mapping[str, ShardFailed], origin: str = ""
    ) -> Segment:
        """Return the segment, complete on all its shards. The shards in `failures` are replaced by others."""
        if len(set(digests.values())) > 1:
            raise GatherError("internal", "the replicas of a segment have different rows")
        segment = replace(segment, sha256=next(iter(digests.values()), ""))
        whole = list(digests)
        for node, failure in failures.items():
            logger.warning("the shard %s did not take rows of %s: %s", node, self._table, failure)
            self._lost.add(node)
            segment = self._replace_shard(segment, node, whole, failure, origin)
        number = next(n for n, one in enumerate(self._segments) if one.start == segment.start)
        self._segments[number] = segment
        return segment

    def _replace_shard(
        self, segment: Segment, lost: str, whole: list[str], failure: ShardFailed, origin: str
    ) -> Segment:
        """Return the segment with another shard replacing `lost`.

        The new shard has pulled the segment from a shard in `whole` or from `origin`, and is added to `whole`.
        """
        for _ in range(_ATTEMPTS):
            before = set(segment.nodes)
            segment = self._move_to_other_shard(segment, lost)
            (node,) = set(segment.nodes) - before
            try:
                digest = self._pull(segment, node, whole, origin)
            except ShardFailed as error:
                lost, failure = node, error
                self._lost.add(node)
            else:
                whole.append(node)
                return replace(segment, sha256=digest)
        raise _error([failure])

    def _pull(self, segment: Segment, node: str, whole: Sequence[str], origin: str) -> str:
        """Make a shard pull a segment. Returns its digest. Raises ShardFailed."""
        tensor = self._tensor(segment)
        nodes = self._client.catalogue.nodes
        order = PullOrder(
            None,
            self._dtype,
            segment.shape(self._shape),
            segment.size,
            segment.sha256,
            tuple(PullSource(nodes[one].address, tensor, node=one) for one in whole),
            origin,
            (segment.start, segment.stop) if origin else (0, 0),
            None if self.keys is None else self.keys.dtype,
        )
        return self._pulling.pull(node, nodes[node].address, tensor, order)

    def _tensor(self, segment: Segment) -> str:
        return shard_tensor(self.content_id, segment.start, segment.stop)

    def _move_to_other_shard(self, segment: Segment, lost: str) -> Segment:
        """Return the segment with `lost` replaced by a shard that has not failed.

        Raises GatherError if there is no such shard.
        """

        def move(catalogue: Catalogue) -> Change | None:
            return transitions.move_upload(catalogue, self.content_id, segment.start, lost, self._lost)

        placed = self._upload_segments(self._client.transact(move))
        found = next(one for one in placed if one.start == segment.start)
        moved = replace(found, sha256=segment.sha256)
        self._segments = [moved if one.start == moved.start else one for one in self._segments]
        return moved

    def _upload_segments(self, catalogue: Catalogue) -> tuple[Segment, ...]:
        upload = catalogue.uploads.get(self.content_id)
        if upload is None:
            raise unavailable("the upload has ended: etcd did not hear from its router for too long")
        return upload.segments


def ranges_for(size: int, options: Options) -> int:
    """Return the number of ranges for a table of `size` bytes."""
    largest = options.segment_bytes
    return max(options.ranges, -(-size // largest) if largest else 0)


def _error(failures: Sequence[ShardFailed]) -> GatherError:
    full = [failure for failure in failures if failure.code == "insufficient_storage"]
    if full:
        return GatherError("insufficient_storage", f"a shard has no room: {full[0]}")
    return unavailable(f"no shard took the rows of a segment: {'; '.join(map(str, failures))}")


BeginWriting: TypeAlias = Callable[[BytesBefore], VersionWriter]
"""A function that begins to write a version."""
