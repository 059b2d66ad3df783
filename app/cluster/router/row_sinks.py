"""Sinks for a shard's response. Rows go from the socket directly to their places in the output.

A sink receives the body of one response. `begin` is called once the body's length is known. Then, bytes from the
connection's buffer are passed to `take`, which returns how many of them it used; the rest is passed again together with
more bytes. If the sink offers memory with `room`, the socket instead reads into that memory and reports the number of
bytes with `read`. `finish` is called when the body is complete. A sink that rejects the response raises BadAnswer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from app.errors import GatherError
from app.formats.safetensors.header import Entry, read_header
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.dtypes import DType
from app.tensors.gather_call import OUTPUT

WIDE_ROW: Final = 1 << 13
"""Rows of at least this many bytes are read into their places one by one. Shorter rows are moved in blocks."""
_LENGTH: Final = 8
"""Size in bytes of the length at the start of a safetensors body."""
_MAX_HEADER: Final = 1 << 12
_CACHED_HEADER: Final = 512
"""Identical headers of at most this many bytes are parsed only once."""


class BadAnswer(Exception):
    """A response is not what was requested. The message says how; `stale` means that it comes from other data."""

    def __init__(self, detail: str, *, stale: bool = False) -> None:
        super().__init__(detail)
        self.stale = stale


_READ_BYTES: Final = 2
"""Bytes of memory per byte of a JSON body: the byte itself and its parsed text."""
_END_BYTES: Final = 1 << 10
_ETAG_AT_END: Final[re.Pattern[bytes]] = re.compile(rb'"data_etag":("(?:[^"\\]|\\["\\])*")[^{}\[\]]*\}\s*\Z')


class WholeBody:
    """Keep a body of at most `most` bytes, which is charged to `memory` before it is read."""

    def __init__(self, most: int, memory: Memory = UNCOUNTED) -> None:
        self.most = most
        self._memory = memory
        self.body = bytearray()
        self._view = memoryview(self.body)
        self._place = 0

    def begin(self, size: int) -> None:
        """Begin a body of `size` bytes. Raises BadAnswer if the body is too long."""
        if size > self.most:
            raise BadAnswer(f"the answer has {size} bytes, and at most {self.most} were asked for")
        if size > len(self.body):
            self._memory.charge(_READ_BYTES * (size - len(self.body)))
        self.body = bytearray(size)
        self._view = memoryview(self.body)
        self._place = 0

    def take(self, view: memoryview) -> int:
        """Copy and use all of `view`."""
        size = len(view)
        self._view[self._place : self._place + size] = view
        self._place += size
        return size

    def room(self) -> memoryview | None:
        """Return the unfilled rest of the body."""
        return self._view[self._place :]

    def read(self, size: int) -> None:
        """Account for `size` bytes that were read into `room`."""
        self._place += size

    def etag(self) -> str | None:
        """Return the `data_etag` member of the JSON body. Raises BadAnswer."""
        # A service writes `data_etag` after the items, so the search starts near the end.
        match = _ETAG_AT_END.search(self.body, max(0, len(self.body) - _END_BYTES))
        found = self.document().get("data_etag") if match is None else orjson.loads(match[1])
        return found if isinstance(found, str) else None

    def finish(self) -> None:
        """Accept any body."""

    def document(self) -> dict[str, Any]:
        """Return the body as a JSON object. Raises BadAnswer."""
        try:
            found = orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            raise BadAnswer(f"the answer is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise BadAnswer("the answer is not a JSON object")
        return found


class _TensorSink:
    """Read the header of a safetensors response, and then its items.

    The response must contain the tensors in `wanted`, which holds the type and shape of each tensor by name.
    """

    def __init__(self, wanted: Mapping[str, tuple[DType, tuple[int, ...]]]) -> None:
        self._wanted = wanted
        self._header = True
        self._size = 0

    def begin(self, size: int) -> None:
        """Begin a body of `size` bytes, which starts with its header.

        Raises BadAnswer if it is too short for a header.
        """
        if size < _LENGTH:
            raise BadAnswer(f"the answer has {size} bytes")
        self._header = True
        self._size = size

    def etag(self) -> str | None:
        """Return None, because the ETag is in the header fields of the response."""
        return None

    def finish(self) -> None:
        """Do nothing, because header and length have already been checked."""

    def _read_header(self, view: memoryview, size: int) -> tuple[int, Sequence[str]]:
        """Parse the header of tensors with `size` bytes.

        Returns the offset of the items, and the tensors' names in order.

        The offset is 0 while the header is incomplete. Raises BadAnswer.
        """
        length = _header_length(view)
        if length < 0:
            return 0, ()
        text = bytes(view[_LENGTH : _LENGTH + length])
        entries = _entries(text) if len(text) <= _CACHED_HEADER else _entries.__wrapped__(text)
        found = {entry.name: (entry.known, entry.shape) for entry in entries}
        is_whole = self._size == _LENGTH + length + size and not any(entry.fault for entry in entries)
        if found != self._wanted or not is_whole:
            wanted = _describe_tensors(self._wanted)
            raise BadAnswer(f"the answer has {_describe_tensors(found)}, and {wanted} was asked for, or other bytes")
        self._header = False
        return _LENGTH + length, [entry.name for entry in entries]


class RowSink(_TensorSink):
    """Move the items of a safetensors response with one tensor to their places in the output.

    `rows` is the output as an array of rows: either one void item per row, or two-dimensional. Row i of the response
    goes to `rows[places[i]]`. The response's tensor must have `dtype` and `shape`, whose first dimension is the number
    of rows. If there is an error, the next replica overwrites the rows already written.
    """

    def __init__(
        self, rows: NDArray[Any], places: NDArray[np.intp], dtype: DType, shape: tuple[int, ...], row_bytes: int
    ) -> None:
        super().__init__({OUTPUT: (dtype, shape)})
        self.rows = rows
        self.places = places
        self.row_bytes = row_bytes
        self._place = 0  # bytes of items that are already in place

    def begin(self, size: int) -> None:
        """Begin a body of `size` bytes, which starts with its header."""
        super().begin(size)
        self._place = 0

    def take(self, view: memoryview) -> int:
        """Read the header, then move whole rows, or parts of wide rows, to their places. Returns the bytes used."""
        start = 0
        if self._header:
            start, _ = self._read_header(view, len(self.places) * self.row_bytes)
            if not start:
                return 0
        if self.row_bytes >= WIDE_ROW:
            while start < len(view):
                room = self._rest_of_row()
                size = min(len(room), len(view) - start)
                room[:size] = view[start : start + size]
                start += size
                self._place += size
            return len(view)
        count = (len(view) - start) // self.row_bytes
        if count:
            end, done = start + count * self.row_bytes, self._place // self.row_bytes
            block: NDArray[Any] = np.frombuffer(view[start:end], self.rows.dtype)
            if self.rows.ndim > 1:
                block = block.reshape(count, -1)
            self.rows[self.places[done : done + count]] = block
            self._place += end - start
            start = end
        return start

    def room(self) -> memoryview | None:
        """Return the rest of a wide row, so that bytes can be read directly into it."""
        return None if self._header or self.row_bytes < WIDE_ROW else self._rest_of_row()

    def read(self, size: int) -> None:
        """Account for `size` bytes that were read into `room`."""
        self._place += size

    def _rest_of_row(self) -> memoryview:
        number, offset = divmod(self._place, self.row_bytes)
        at = int(self.places[number])
        view: memoryview = self.rows[at : at + 1].reshape(-1).view(np.uint8).data
        return view[offset:]


class WholeTensors(_TensorSink):
    """Move the tensors of a safetensors response to contiguous memory.

    `tensors` holds the type, shape and memory of each tensor by name.
    """

    def __init__(self, tensors: Mapping[str, tuple[DType, tuple[int, ...], NDArray[Any]]]) -> None:
        super().__init__({name: (dtype, shape) for name, (dtype, shape, _) in tensors.items()})
        assert all(array.flags.c_contiguous for _, _, array in tensors.values()), "a reshaped view is no copy"
        self._places = {name: array.reshape(-1).view(np.uint8).data for name, (_, _, array) in tensors.items()}
        self._bytes = sum(map(len, self._places.values()))
        self._left: list[memoryview] = []
        """Memory that has not been filled yet, in the order of the response."""

    def take(self, view: memoryview) -> int:
        """Read the header, then copy the bytes that follow. Returns the number of bytes used."""
        start = 0
        if self._header:
            start, names = self._read_header(view, self._bytes)
            if not start:
                return 0
            self._left = [self._places[name] for name in names]
        while start < len(view) and (room := self.room()) is not None:
            size = min(len(room), len(view) - start)
            room[:size] = view[start : start + size]
            self.read(size)
            start += size
        return start

    def room(self) -> memoryview | None:
        """Return the unfilled rest of the current tensor."""
        while self._left and not len(self._left[0]):
            self._left.pop(0)
        return self._left[0] if self._left and not self._header else None

    def read(self, size: int) -> None:
        """Account for `size` bytes that were read into `room`."""
        self._left[0] = self._left[0][size:]


Sink: TypeAlias = WholeBody | RowSink | WholeTensors


def _header_length(view: memoryview) -> int:
    """Return the length of a safetensors header, or -1 while it is incomplete. Raises BadAnswer if it is too long."""
    if len(view) < _LENGTH:
        return -1
    length = int.from_bytes(view[:_LENGTH], "little")
    if length > _MAX_HEADER:
        raise BadAnswer(f"the header of the answer has {length} bytes")
    return length if len(view) >= _LENGTH + length else -1


@lru_cache(1024)
def _entries(header: bytes) -> tuple[Entry, ...]:
    """Return the tensors of a safetensors header. Raises BadAnswer."""
    try:
        return read_header(header)
    except GatherError as error:
        raise BadAnswer(error.detail) from None


def _describe_tensors(tensors: Mapping[str, tuple[DType | None, tuple[int, ...]]]) -> str:
    """Return the names, types and shapes of tensors, for error messages."""
    found = ((name, "?" if dtype is None else dtype.name, shape) for name, (dtype, shape) in tensors.items())
    return ", ".join(f"{name} of {dtype} {list(shape)}" for name, dtype, shape in found)
