"""Download open tables, and tables with keys, by streaming each range from one of its replicas.

All streams are opened before the first byte is sent, so that the ETag is known and each range is at one sequence. The
ranges' rows are sent one range after another, and each waiting stream holds some memory. A shard gives up a response
that has not been read for an hour, so the router reads a little from each waiting stream from time to time, however
slow the client is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import quote

import numpy as np

from app.api.own_header_fields import NODE_FIELD, SEQUENCE
from app.api.routes.tensors import keys_of
from app.cluster.router.fetch_rows import LostRange, RowFetcher
from app.cluster.router.row_sinks import BadAnswer
from app.cluster.router.sequences import sequence_of
from app.cluster.router.shard_connection import Failure
from app.cluster.router.shard_resources import NeedingPlaces, unavailable
from app.cluster.router.sharded_tensors import ShardedResident
from app.cluster.shard_map import Replica, RowRange
from app.errors import GatherError
from app.formats.body_formats import SAFETENSORS_FILE
from app.formats.safetensors.upload import read_start
from app.memory.budget import UNCOUNTED, Memory
from app.telemetry.served_request import ServedRequest
from app.tensors.keys_spec import KeysSpec

_HELD: Final = 1 << 18
"""Half of the number of bytes that a waiting stream may hold."""
_PIECE: Final = 1 << 20
_RAW: Final = b"application/octet-stream"
_LENGTH: Final = 8
"""Size in bytes of the length at the start of a safetensors body."""
_MAX_HEADER: Final = 1 << 12
TOUCH_S: Final = 1200.0
"""Seconds between reads from a waiting stream. A client may take this long to receive one piece."""
_TOUCH: Final = 1 << 20
"""Number of bytes in a read from a waiting stream: enough for the kernels of both machines to let more bytes
through.
"""
_TOUCH_WAIT_S: Final = 1.0
_OPEN_S: Final = 10.0
_SILENT_S: Final = 30.0
_ROUNDS: Final = 3
_PAUSE_S: Final = 0.2
_PROBLEMS: Final = (OSError, ValueError, EOFError, BadAnswer, asyncio.LimitOverrunError, TimeoutError)


@dataclass(frozen=True, slots=True)
class ContentSnapshot:
    """A read of the content with the ETag `etag`, unaffected by later changes.

    `size` is the number of bytes in `pieces`, and `rows` is the number of rows or keys in them. `keys`, if set,
    describes the keys that precede the rows. Call `close` exactly once.
    """

    etag: str
    size: int
    rows: int
    pieces: AsyncIterator[bytes]
    close: Callable[[], None]
    keys: KeysSpec | None = None


class _Target(NamedTuple):
    """The format to request from a shard, and the path, which is relative to the range's tensor."""

    path: bytes
    accept: bytes = _RAW


@dataclass(slots=True)
class _RangeStream:
    """The incoming rows of a range at `sequence`.

    `held` holds bytes that have arrived; `left` is the number still to come.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    left: int
    sequence: int
    rows: int
    held: deque[bytes] = field(default_factory=deque)
    keys: KeysSpec | None = None
    """The description of the keys, which precede the rows, or None if there are no keys."""

    @property
    def is_over(self) -> bool:
        """Whether everything has been read."""
        return not self.left and not self.held

    async def read(self, most: int = _PIECE) -> bytes:
        """Return the next bytes, `most` bytes at most. Raises OSError, EOFError and TimeoutError."""
        if self.held:
            piece = self.held.popleft()
            if len(piece) > most:
                self.held.appendleft(piece[most:])
            return piece[:most]
        async with asyncio.timeout(_SILENT_S):
            return await self._read_received(min(most, _PIECE))

    async def read_keys(self) -> KeysSpec:
        """Read the header of a safetensors file that begins with keys. Also raises BadAnswer."""
        length = int.from_bytes(await self._read_exactly(_LENGTH), "little")
        if length > _MAX_HEADER:
            raise BadAnswer(f"the header of a download has {length} bytes")
        try:
            start = read_start(length.to_bytes(_LENGTH, "little") + await self._read_exactly(length), UNCOUNTED)
            if start is None:
                raise BadAnswer("a download has no header")
            return start.keys or keys_of(start)
        except GatherError as error:
            raise BadAnswer(error.detail) from None

    async def _read_exactly(self, size: int) -> bytes:
        async with asyncio.timeout(_SILENT_S):
            piece = await self.reader.readexactly(size)
        self.left -= size
        return piece

    async def read_ahead(self, memory: Memory) -> None:
        """Read a little from a waiting stream.

        Raises OSError, EOFError, and overloaded if there is not enough memory.
        """
        most = min(_TOUCH, self.left)
        memory.charge(most)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOUCH_WAIT_S):
                while most:
                    piece = await self._read_received(most)
                    self.held.append(piece)
                    most -= len(piece)

    async def _read_received(self, most: int) -> bytes:
        piece = await self.reader.read(min(most, self.left))
        if not piece:
            raise EOFError("a shard broke off a download")
        self.left -= len(piece)
        return piece


class TableSnapshots:
    """Open snapshots over separate connections, using the key and authorities of `fetcher`."""

    def __init__(self, fetcher: RowFetcher) -> None:
        self._fetcher = fetcher

    async def open(self, resident: ShardedResident, first: int, last: int, request: ServedRequest) -> ContentSnapshot:
        """Open a snapshot of the rows `first` to `last` - 1 of a version or, for a table with keys, of all rows.

        Raises shard_unavailable and overloaded.
        """
        version = resident.version_in_map
        targets = {} if version.keys is None else dict.fromkeys(range(len(version.ranges)), _Target(b"content"))
        for number, (start, stop) in enumerate(version.row_bounds):
            if version.keys is None and start < last and first < stop:
                targets[number] = _Target(b"content?rows=%d:%d" % (max(first, start) - start, min(last, stop) - start))
        found, etag = await self._streams(resident, targets, request)
        pieces = _pieces(found, request.memory)
        return ContentSnapshot(etag, sum(one.left for one in found), _rows_of(found), pieces, lambda: _close(found))

    async def open_keys(self, resident: ShardedResident, request: ServedRequest) -> ContentSnapshot:
        """Open a snapshot of all keys, as integers or as strings in BYTES framing.

        Raises shard_unavailable and overloaded.
        """
        targets = dict.fromkeys(range(len(resident.version_in_map.ranges)), _Target(b"keys"))
        found, etag = await self._streams(resident, targets, request)
        pieces = _pieces(found, request.memory)
        return ContentSnapshot(etag, sum(one.left for one in found), _rows_of(found), pieces, lambda: _close(found))

    async def open_keyed(
        self, resident: ShardedResident, request: ServedRequest, *, with_rows: bool
    ) -> ContentSnapshot:
        """Open a snapshot of all keys in the form of an upload, followed by the rows if they are requested.

        Raises shard_unavailable and overloaded.
        """
        target = _Target(b"content" if with_rows else b"keys", SAFETENSORS_FILE.media_type.encode())
        targets = dict.fromkeys(range(len(resident.version_in_map.ranges)), target)
        found, etag = await self._streams(resident, targets, request)
        specs = [one.keys for one in found if one.keys is not None]
        keys = KeysSpec(specs[0].dtype, sum(one.count for one in specs), sum(one.string_bytes for one in specs))
        size = keys.size + sum(one.left - spec.size for one, spec in zip(found, specs, strict=True))
        pieces = _keyed_pieces(found, specs, request.memory)
        return ContentSnapshot(etag, size, keys.count, pieces, lambda: _close(found), keys)

    async def _streams(
        self, resident: ShardedResident, targets: Mapping[int, _Target], request: ServedRequest
    ) -> tuple[list[_RangeStream], str]:
        """Open the streams of these ranges, and return them with the ETag. Raises shard_unavailable and overloaded."""
        version, read = resident.version_in_map, dict[str, int]()
        request.memory.charge(2 * _HELD * len(targets))
        wanted = {number: version.ranges[number] for number in targets}
        opening = [self._stream(one, targets[number], request) for number, one in wanted.items()]
        streams = await asyncio.gather(*opening)
        found = [one for one in streams if isinstance(one, _RangeStream)]
        lost = [
            LostRange(0, number, failures)
            for number, failures in zip(wanted, streams, strict=True)
            if not isinstance(failures, _RangeStream)
        ]
        if lost:
            _close(found)
            raise unavailable(resident, lost, [NeedingPlaces((), 0)] * len(lost))
        for one, stream in zip(wanted.values(), found, strict=True):
            read[one.tensor] = stream.sequence
            self._fetcher.sequences.record(one.tensor, stream.sequence)
        return found, self._fetcher.sequences.etag(version, read)

    async def _stream(self, one: RowRange, target: _Target, request: ServedRequest) -> _RangeStream | Sequence[Failure]:
        """Open the stream of a range, from any replica that offers it. Returns the failures if none of them does."""
        failures: list[Failure] = []
        for turn in range(_ROUNDS):
            if turn:
                await asyncio.sleep(_PAUSE_S)
            for replica in self._fetcher.shards.choice.order(one.replicas, asyncio.get_running_loop().time()):
                try:
                    async with asyncio.timeout(_OPEN_S):
                        return await self._open(one, replica, target, request)
                except _PROBLEMS as error:
                    failures.append(Failure("lost", str(error)))
        return failures

    async def _open(self, one: RowRange, replica: Replica, target: _Target, request: ServedRequest) -> _RangeStream:
        host, _, port = replica.address.rpartition(":")
        tls = self._fetcher.shards.tls
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=_HELD, ssl=tls)
        try:
            least = self._fetcher.sequences.lowest_accepted(one.tensor)
            head = (
                b"GET /tensors/%b/%b HTTP/1.1\r\nhost: %b\r\naccept: %b\r\n"
                b"%b: %b\r\n%b: %d\r\nconnection: close\r\n%b%b\r\n"
            ) % (
                quote(one.tensor).encode(), target.path, replica.address.encode(), target.accept, NODE_FIELD,
                replica.node.encode(), SEQUENCE, least, self._fetcher.fields, self._fetcher.forwarded_lines(request),
            )  # fmt: skip
            writer.write(head)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            if " 200" not in lines[0]:
                raise BadAnswer(f"{replica.address} answered {lines[0]}")
            sequence = sequence_of(fields.get("etag"))
            if sequence < least:
                raise BadAnswer(f"the content is at sequence {sequence}, and {least} is known", stale=True)
            rows = int(fields["x-gathernd-shape"].partition(",")[0] or 1)
            stream = _RangeStream(reader, writer, int(fields["content-length"]), sequence, rows)
            if target.accept != _RAW:
                stream.keys = await stream.read_keys()
            return stream
        except KeyError:
            writer.close()
            raise BadAnswer(f"{replica.address} does not say how long its answer is") from None
        except BaseException:
            writer.close()
            raise


def _rows_of(streams: Sequence[_RangeStream]) -> int:
    return sum(one.rows for one in streams)


async def _pieces(streams: Sequence[_RangeStream], memory: Memory) -> AsyncIterator[bytes]:
    """Yield the bytes of all streams. Raises OSError, and EOFError if a stream ends early."""
    turns = _FairReader(streams, memory)
    for stream in streams:
        while not stream.is_over:
            yield await turns.read(stream)
        stream.writer.close()


async def _keyed_pieces(
    streams: Sequence[_RangeStream], specs: Sequence[KeysSpec], memory: Memory
) -> AsyncIterator[bytes]:
    """Yield the keys of all streams, then the rest. For strings, all offsets come first and are counted from 0."""
    turns = _FairReader(streams, memory)
    before = 0
    for number, (stream, spec) in enumerate(zip(streams, specs, strict=True)):
        left = 8 * (spec.count + 1) if spec.dtype == "string" else 0
        incomplete = b""
        skipped = 8 if number else 0  # the last offset of one range is the first offset of the next
        while left:
            piece = incomplete + await turns.read(stream, left - len(incomplete))
            whole = len(piece) // 8 * 8
            incomplete = piece[whole:]
            left -= whole
            offsets = np.frombuffer(piece[skipped:whole], np.int64) + before
            skipped = max(0, skipped - whole)
            if len(offsets):
                yield offsets.tobytes()
        before += spec.string_bytes
    for stream, spec in zip(streams, specs, strict=True):
        left = spec.string_bytes if spec.dtype == "string" else spec.size
        while left:
            piece = await turns.read(stream, left)
            left -= len(piece)
            yield piece
    async for piece in _pieces(streams, memory):
        yield piece


class _FairReader:
    """Read one stream after another and, from time to time, a little from each waiting stream."""

    def __init__(self, streams: Sequence[_RangeStream], memory: Memory) -> None:
        self._streams = streams
        self._memory = memory
        self._touched = asyncio.get_running_loop().time()

    async def read(self, stream: _RangeStream, most: int = _PIECE) -> bytes:
        """Return the next bytes of a stream. Raises OSError and EOFError."""
        now = asyncio.get_running_loop().time
        if now() >= self._touched + TOUCH_S:
            await asyncio.gather(*(one.read_ahead(self._memory) for one in self._streams if one is not stream))
            self._touched = now()
        return await stream.read(most)


def _close(streams: Sequence[_RangeStream]) -> None:
    for stream in streams:
        with suppress(OSError):
            stream.writer.close()
