"""Sinks for the response of a shard: rows go from the socket straight to their places in the output.

A sink receives the body of one response. `begin` is called once its length is known. Then either bytes from the
connection's buffer are passed to `take`, which returns how many it used (the rest is passed again with more bytes), or,
if the sink offers memory with `room`, the socket reads into it and reports the number of bytes with `read`. `finish` is
called when the body is complete. A sink that rejects the response raises BadAnswer.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from app.errors import GatherError
from app.formats.safetensors.header import Entry, read_header
from app.memory.budget import UNCOUNTED, Memory
from app.tensors.by_key import FOUND
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import OUTPUT

WIDE_ROW: Final = 1 << 13
"""Rows of at least this many bytes are read into their places one by one; shorter ones are moved in blocks."""
_LENGTH: Final = 8
"""Bytes of the length at the start of a safetensors body."""
_MAX_HEADER: Final = 1 << 12


class BadAnswer(Exception):
    """A response is not what was requested. The text says how; `stale` means that it has another content."""

    def __init__(self, detail: str, *, stale: bool = False) -> None:
        super().__init__(detail)
        self.stale = stale


_READ_BYTES: Final = 2
"""Bytes of memory per byte of a JSON body: the byte itself and its parsed text."""
_END_BYTES: Final = 1 << 10
_ETAG_AT_END: Final[re.Pattern[bytes]] = re.compile(rb'"data_etag":("(?:[^"\\]|\\["\\])*")[^{}\[\]]*\}\s*\Z')


class WholeBody:
    """Keeps a body of at most `most` bytes, which is charged to `memory` first."""

    def __init__(self, most: int, memory: Memory = UNCOUNTED) -> None:
        self.most = most
        self._memory = memory
        self.body = bytearray()
        self._view = memoryview(self.body)
        self._place = 0

    def begin(self, size: int) -> None:
        """Begin a body of `size` bytes. Raises BadAnswer if it is too long."""
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
        """Return the member `data_etag` of the JSON body. Raises BadAnswer."""
        # A service writes it after the items, so it is searched from the end.
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


class RowSink:
    """Moves the items of a safetensors response with one tensor to their places.

    `rows` is the output as an array of rows, either void items or 2-D. Row i of the response goes to `rows[places[i]]`,
    or to `rows[i]` if `places` is None. The response's tensor must have `dtype` and `shape`, whose first dimension is
    the rows. Rows written before an error are overwritten by the next replica.
    """

    def __init__(
        self, rows: NDArray[Any], places: NDArray[np.intp] | None, dtype: DType, shape: tuple[int, ...], row_bytes: int
    ) -> None:
        self.rows = rows
        self.places = places
        self.dtype = dtype
        self.shape = shape
        self.row_bytes = row_bytes
        self._count = len(rows) if places is None else len(places)
        self._header = True
        self._size = 0
        self._place = 0  # bytes of items that are in place
        self._whole = (
            None if places is not None or not rows.flags.c_contiguous else rows.reshape(-1).view(np.uint8).data
        )

    def begin(self, size: int) -> None:
        """Begin a body of `size` bytes, with its header first. Raises BadAnswer if it is too short to have one."""
        if size < _LENGTH:
            raise BadAnswer(f"the answer has {size} bytes")
        self._header = True
        self._size = size
        self._place = 0

    def take(self, view: memoryview) -> int:
        """Read the header, then move whole rows, or parts of wide rows, to their places. Returns the bytes used."""
        start = 0
        if self._header:
            start = self._read_header(view)
            if not start:
                return 0
        if self._whole is not None:
            piece = view[start:]
            self._whole[self._place : self._place + len(piece)] = piece
            self._place += len(piece)
            return len(view)
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
            if self.places is None:
                self.rows[done : done + count] = block
            else:
                self.rows[self.places[done : done + count]] = block
            self._place += end - start
            start = end
        return start

    def room(self) -> memoryview | None:
        """Return the rest of the output or of the row, if bytes can be read straight into place."""
        if self._header:
            return None
        if self._whole is not None:
            return self._whole[self._place :]
        return self._rest_of_row() if self.row_bytes >= WIDE_ROW else None

    def read(self, size: int) -> None:
        """Account for `size` bytes that were read into `room`."""
        self._place += size

    def etag(self) -> str | None:
        """Return None: the ETag is in the header fields of the response."""
        return None

    def finish(self) -> None:
        """Do nothing: header and length have already been checked."""

    def _rest_of_row(self) -> memoryview:
        number, offset = divmod(self._place, self.row_bytes)
        at = number if self.places is None else int(self.places[number])
        view: memoryview = self.rows[at : at + 1].reshape(-1).view(np.uint8).data
        return view[offset:]

    def _read_header(self, view: memoryview) -> int:
        """Parse the header. Returns the offset of the items, or 0 while the header is incomplete. Raises BadAnswer."""
        length = _header_length(view)
        if length < 0:
            return 0
        text = bytes(view[8 : 8 + length])
        if len(text) <= 512:
            dtype, shape, size = _described(text)
        else:
            dtype, shape, size = _described.__wrapped__(text)
        wanted = self._count * self.row_bytes
        if dtype is not self.dtype or shape != self.shape or size != wanted or self._size != 8 + length + wanted:
            found = f"{None if dtype is None else dtype.name} of shape {list(shape)}"
            raise BadAnswer(f"the answer is {found}, and {self.dtype.name} of shape {list(self.shape)} was asked for")
        self._header = False
        return 8 + length


class FoundRows:
    """Moves rows, and whether the table has their keys, to their places: the tensors `output` and `found`.

    `octets` are the bytes of the rows, and `found` has an item for each row. Both are contiguous. The response's
    `output` must have `dtype` and `shape`, and its `found` must be bool with the same first dimension.
    """

    def __init__(
        self, octets: NDArray[np.uint8], found: NDArray[np.bool_], dtype: DType, shape: tuple[int, ...]
    ) -> None:
        self._wanted = {OUTPUT: (dtype, shape), FOUND: (DTYPES["bool"], shape[:1])}
        self._places = {OUTPUT: octets.data, FOUND: found.view(np.uint8).data}
        self._left: list[memoryview] = []
        """Memory yet to be filled, in the order of the response."""
        self._header = True
        self._size = 0

    def begin(self, size: int) -> None:
        """Begin a body of `size` bytes, with its header first."""
        self._header = True
        self._size = size
        self._left = []

    def take(self, view: memoryview) -> int:
        """Read the header, then copy what follows. Returns the bytes used."""
        start = 0
        if self._header:
            start = self._read_header(view)
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
        return self._left[0] if self._left else None

    def read(self, size: int) -> None:
        """Account for `size` bytes that were read into `room`."""
        self._left[0] = self._left[0][size:]

    def etag(self) -> str | None:
        """Return None: the ETag is in the header fields of the response."""
        return None

    def finish(self) -> None:
        """Do nothing: header and length have already been checked."""

    def _read_header(self, view: memoryview) -> int:
        """Parse the header. Returns the offset of the items, or 0 while the header is incomplete. Raises BadAnswer."""
        length = _header_length(view)
        if length < 0:
            return 0
        entries = _entries(bytes(view[_LENGTH : _LENGTH + length]))
        places = [self._places[entry.name] for entry in entries if entry.name in self._places]
        has_wanted = {entry.name: (entry.known, entry.shape) for entry in entries} == self._wanted
        if not has_wanted or self._size != _LENGTH + length + sum(map(len, places)):
            raise BadAnswer(f"the answer has not the tensors {self._wanted}, or not their bytes")
        self._left = places
        self._header = False
        return _LENGTH + length


Sink: TypeAlias = WholeBody | RowSink | FoundRows


def _header_length(view: memoryview) -> int:
    """Return the length of a safetensors header, or -1 while it is incomplete. Raises BadAnswer if it is too long."""
    if len(view) < _LENGTH:
        return -1
    length = int.from_bytes(view[:_LENGTH], "little")
    if length > _MAX_HEADER:
        raise BadAnswer(f"the header of the answer has {length} bytes")
    return length if len(view) >= _LENGTH + length else -1


def _entries(header: bytes) -> tuple[Entry, ...]:
    """Return the tensors of a safetensors header. Raises BadAnswer."""
    try:
        return read_header(header)
    except GatherError as error:
        raise BadAnswer(error.detail) from None


@lru_cache(1024)
def _described(header: bytes) -> tuple[DType | None, tuple[int, ...], int]:
    """Return type, shape and bytes of `output`, the only tensor of a safetensors header. Raises BadAnswer."""
    entries = _entries(header)
    if len(entries) != 1 or entries[0].name != OUTPUT:
        raise BadAnswer("the answer has not the one tensor 'output'")
    return entries[0].known, entries[0].shape, entries[0].end
