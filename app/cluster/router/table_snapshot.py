"""Downloads of tables that take scatters: each range is read from a snapshot that one of its replicas keeps meanwhile.

All streams are opened before the first byte is sent on, so that the ETag is known and each range is of one sequence.
The rows of one range come after those of another; the streams that wait their turn hold some memory each. A shard gives
up an answer that nobody reads for an hour. So a little is read of each, now and then, however slow the client is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

from app.api.meant_shard import FIELD
from app.api.routes.tensors_content_in_ranges import ContentSnapshot
from app.cluster.router.fetch_rows import LostRange, RowFetcher
from app.cluster.router.row_sinks import BadAnswer
from app.cluster.router.sequences import FIELD as SEQUENCE
from app.cluster.router.sequences import sequence_of
from app.cluster.router.shard_connection import Failure
from app.cluster.router.shard_resources import NeedingPlaces, unavailable
from app.cluster.router.sharded_tensors import ShardedResident
from app.cluster.shard_map import Replica, RowRange
from app.memory.budget import Memory
from app.telemetry.served_request import ServedRequest

_HELD: Final = 1 << 18
"""A stream that waits holds at most twice as many bytes."""
_PIECE: Final = 1 << 20
TOUCH_S: Final = 1200.0
"""Seconds after which something is read of a stream that waits; a client may take as long for one piece."""
_TOUCH: Final = 1 << 20
"""Bytes that are read then: enough for the kernels of both machines to let some more through."""
_TOUCH_WAIT_S: Final = 1.0
_OPEN_S: Final = 10.0
_SILENT_S: Final = 30.0
_ROUNDS: Final = 3
_PAUSE_S: Final = 0.2
_PROBLEMS: Final = (OSError, ValueError, EOFError, BadAnswer, asyncio.LimitOverrunError, TimeoutError)


@dataclass(slots=True)
class _RangeStream:
    """The rows of one range that come, of the content at `sequence`: `held`, and `left` bytes after that."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    left: int
    sequence: int
    held: deque[bytes] = field(default_factory=deque)

    @property
    def is_over(self) -> bool:
        """Whether all has been read."""
        return not self.left and not self.held

    async def read(self) -> bytes:
        """The next bytes. Raises OSError, EOFError and TimeoutError."""
        if self.held:
            return self.held.popleft()
        async with asyncio.timeout(_SILENT_S):
            return await self._take(_PIECE)

    async def touch(self, memory: Memory) -> None:
        """Read a little ahead of its turn. Raises OSError and EOFError, and overloaded if there is no room for it."""
        most = min(_TOUCH, self.left)
        memory.charge(most)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOUCH_WAIT_S):
                while most:
                    piece = await self._take(most)
                    self.held.append(piece)
                    most -= len(piece)

    async def _take(self, most: int) -> bytes:
        piece = await self.reader.read(min(most, self.left))
        if not piece:
            raise EOFError("a shard has broken off a download")
        self.left -= len(piece)
        return piece


class TableSnapshots:
    """Opens snapshots over connections of its own, asked for as `fetcher` asks."""

    def __init__(self, fetcher: RowFetcher) -> None:
        self._fetcher = fetcher

    async def open(self, resident: ShardedResident, first: int, last: int, request: ServedRequest) -> ContentSnapshot:
        """The rows `first` to `last` - 1 of a version. Raises shard_unavailable and overloaded."""
        version, read = resident.version_in_map, dict[str, int]()
        wanted = [one for one in version.ranges if one.start < last and first < one.stop]
        request.memory.charge(2 * _HELD * len(wanted))
        bounds = [(max(first, one.start) - one.start, min(last, one.stop) - one.start) for one in wanted]
        opening = [self._stream(*pair, request) for pair in zip(wanted, bounds, strict=True)]
        streams = await asyncio.gather(*opening)
        found = [one for one in streams if isinstance(one, _RangeStream)]
        lost = [
            LostRange(0, version.ranges.index(one), failures)
            for one, failures in zip(wanted, streams, strict=True)
            if not isinstance(failures, _RangeStream)
        ]
        if lost:
            _close(found)
            raise unavailable(resident, lost, [NeedingPlaces((), 0)] * len(lost))
        for one, stream in zip(wanted, found, strict=True):
            read[one.tensor] = stream.sequence
            self._fetcher.sequences.told(one.tensor, stream.sequence)
        etag = self._fetcher.sequences.etag(version, read)
        return ContentSnapshot(etag, _pieces(found, request.memory), lambda: _close(found))

    async def _stream(
        self, one: RowRange, bounds: tuple[int, int], request: ServedRequest
    ) -> _RangeStream | Sequence[Failure]:
        """The stream of a range, by whichever replica gives it, or why none does."""
        failures: list[Failure] = []
        for turn in range(_ROUNDS):
            if turn:
                await asyncio.sleep(_PAUSE_S)
            for replica in self._fetcher.shards.choice.order(one.replicas, asyncio.get_running_loop().time()):
                try:
                    async with asyncio.timeout(_OPEN_S):
                        return await self._open(one, replica, bounds, request)
                except _PROBLEMS as error:
                    failures.append(Failure("lost", str(error)))
        return failures

    async def _open(
        self, one: RowRange, replica: Replica, bounds: tuple[int, int], request: ServedRequest
    ) -> _RangeStream:
        host, _, port = replica.address.rpartition(":")
        tls = self._fetcher.shards.tls
        reader, writer = await asyncio.open_connection(host.strip("[]"), int(port), limit=_HELD, ssl=tls)
        try:
            least = self._fetcher.sequences.least(one.tensor)
            head = (
                b"GET /tensors/%b/content?rows=%d:%d HTTP/1.1\r\nhost: %b\r\naccept: application/octet-stream\r\n"
                b"%b: %b\r\n%b: %d\r\nconnection: close\r\n%b%b\r\n"
            ) % (
                quote(one.tensor).encode(), *bounds, replica.address.encode(), FIELD, replica.node.encode(), SEQUENCE,
                least, self._fetcher.fields, self._fetcher.handed_on(request),
            )  # fmt: skip
            writer.write(head)
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            if " 200" not in lines[0]:
                raise BadAnswer(f"{replica.address} answered {lines[0]}")
            sequence = sequence_of(fields.get("etag"))
            if sequence < least:
                raise BadAnswer(f"the content is at sequence {sequence}, and {least} is known", stale=True)
            return _RangeStream(reader, writer, int(fields["content-length"]), sequence)
        except KeyError:
            writer.close()
            raise BadAnswer(f"{replica.address} does not say how long its answer is") from None
        except BaseException:
            writer.close()
            raise


async def _pieces(streams: Sequence[_RangeStream], memory: Memory) -> AsyncIterator[bytes]:
    """The bytes of all streams. Raises OSError and EOFError if one ends early."""
    loop = asyncio.get_running_loop()
    touched = loop.time()
    for number, stream in enumerate(streams):
        while not stream.is_over:
            if loop.time() >= touched + TOUCH_S:
                await asyncio.gather(*(one.touch(memory) for one in streams[number + 1 :]))
                touched = loop.time()
            yield await stream.read()
        stream.writer.close()


def _close(streams: Sequence[_RangeStream]) -> None:
    for stream in streams:
        with suppress(OSError):
            stream.writer.close()
