"""Build the requests to shards for one gather from a table in row ranges. Does no I/O and requires no table values.

A gather reads axis 0 in one of two ways. If it reads by index (`row_requests`), each tuple goes to the range that holds
its row. If axis 0 is a batch axis or precedes Gather's axis, the gather reads every position (`block_requests`), and
each range returns the block of the output for its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pybase64
from numpy.typing import NDArray

from app.cluster.router.row_sinks import BadAnswer, RowSink, Sink, WholeBody, WholeTensors
from app.cluster.shard_map import ShardedVersion
from app.formats.safetensors.header import write_header
from app.formats.safetensors.upload import keys_head
from app.kernels.split_by_range import split
from app.keys.key_column import KeyColumn, KeyType
from app.memory.budget import Memory
from app.operators.registry import OPERATORS
from app.store.files.tensor_file import etag_of
from app.tensors.buffer_type import Buffer
from app.tensors.by_key import FOUND
from app.tensors.dtypes import DTYPES, DType
from app.tensors.gather_call import OUTPUT
from app.tensors.keys_spec import KeysSpec
from app.tensors.operator_signature import OperatorName
from app.tensors.string_frames import read_frames
from app.tensors.string_tensor import PackedStrings

_INT64: Final = DTYPES["int64"]
_LARGE: Final = 1 << 16
_ANSWER_ROOM: Final = 1 << 14
"""Extra bytes allowed for a JSON response in addition to its items."""
_EXACT_ROW: Final = 1 << 13


@dataclass(slots=True)
class RangeRequest:
    """A request to a range of a table for `rows` rows of `output`, using `operator`.

    `query` follows the name of the tensor in the path. `places` holds the indices of the tuples that need the range, in
    the order of the request's indices, or None for all tuples of a block.
    """

    operator: OperatorName
    query: bytes
    body: Sequence[Buffer]
    output: Output
    sink: Sink
    rows: int
    places: NDArray[np.intp] | None = None

    @property
    def answer_bytes(self) -> int:
        """Estimated length of the response."""
        return self.rows * self.output.row_bytes

    def pieces(self, tensor: str, address: str, fields: bytes) -> list[Buffer]:
        """Return the bytes of the request to a shard. `fields` holds further header lines."""
        head = (
            b"POST /%b?tensor=%b%b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/x-safetensors\r\naccept: %b\r\n"
            b"%bcontent-length: %d\r\n\r\n"
        ) % (
            self.operator.encode(), tensor.encode(), self.query, address.encode(), self.output.accept, fields,
            sum(map(len, self.body)),
        )  # fmt: skip
        return [head + self.body[0]] if len(self.body) == 1 else [head, *self.body]


@dataclass(slots=True)
class ExtentRequest:
    """A request for the sequence and the number of rows of a range."""

    sink: ExtentBody

    @property
    def answer_bytes(self) -> int:
        """Estimated length of the response: 0, because the response is short."""
        return 0

    def pieces(self, tensor: str, address: str, fields: bytes) -> list[Buffer]:
        """Return the bytes of the request to a shard. `fields` holds further header lines."""
        line = b"GET /shard/ranges/%b?rows=true HTTP/1.1" % quote(tensor).encode()
        return [b"%b\r\nhost: %b\r\n%b\r\n" % (line, address.encode(), fields)]


class ExtentBody(WholeBody):
    """The response to an `ExtentRequest`.

    `rows` is the number of rows at the sequence that the response's ETag contains. That ETag has no content ID.
    """

    rows = 0

    def __init__(self) -> None:
        super().__init__(_ANSWER_ROOM)

    def etag(self) -> str | None:
        """Return the sequence as an ETag. Raises BadAnswer."""
        return etag_of("", self._number("applied"))

    def finish(self) -> None:
        """Read the number of rows. Raises BadAnswer."""
        self.rows = self._number("rows")

    def _number(self, name: str) -> int:
        try:
            return int(self.document()[name])
        except (KeyError, TypeError, ValueError) as error:
            raise BadAnswer(f"the answer cannot be read: {error}") from None


class Output:
    """The items of an output while ranges are filling it: numeric items of any kind, or strings.

    `rows` is the view that sinks write to, with one row per tuple. Strings have no view; their frames are put in order
    once all of them have arrived. JSON responses are charged to `memory`.
    """

    def __init__(
        self,
        dtype: DType,
        rows: NDArray[Any] | None,
        row_items: int,
        memory: Memory,
        most_bytes: int,
    ) -> None:
        self.dtype = dtype
        self.rows = rows
        self.row_items = row_items
        self.row_bytes = row_items * dtype.item_size
        self._memory = memory
        self._most_bytes = most_bytes
        self._whole: list[tuple[_Items, NDArray[np.intp] | slice]] = []

    @property
    def accept(self) -> bytes:
        """The format to request from shards: safetensors, or JSON for types that safetensors does not support."""
        return b"application/json" if self.dtype.safetensors is None else b"application/x-safetensors"

    @property
    def query(self) -> bytes:
        """The query fields for this format."""
        return b"&output_encoding=base64" if self.dtype.safetensors is None else b""

    def sink(self, places: NDArray[np.intp] | slice, shape: tuple[int, ...]) -> Sink:
        """Return the sink for a response of `shape` whose rows belong to `places`: row numbers, or contiguous rows."""
        if self.dtype.safetensors is not None:
            assert self.rows is not None
            if isinstance(places, slice):
                return WholeTensors({OUTPUT: (self.dtype, shape, self.rows[places])})
            return RowSink(self.rows, places, self.dtype, shape, self.row_bytes)
        count = places.stop - places.start if isinstance(places, slice) else len(places)
        strings = count * self.row_items if self.dtype.kind == "string" else None
        body = _Items(self._most_bytes if strings is not None else count * self.row_bytes, strings, self._memory)
        self._whole.append((body, places))
        return body

    @property
    def json_bytes(self) -> int:
        """Total bytes of the items that arrived as JSON."""
        return sum(body.octets.size for body, _ in self._whole)

    def finish(self) -> None:
        """Move items that arrived as JSON to their places."""
        if self.dtype.kind == "string" or self.rows is None:
            return
        for body, places in self._whole:
            self.rows[places] = body.octets.view(self.rows.dtype).reshape(-1, *self.rows.shape[1:])

    def strings(self, rows: int, shape: tuple[int, ...]) -> PackedStrings:
        """Return the strings of all responses in order, as `rows` rows of a table of strings."""
        starts = np.empty((rows, self.row_items), np.int64)
        end = 0
        for body, places in self._whole:
            starts[places] = body.starts.reshape(-1, self.row_items) + end
            end += body.octets.size
        pieces = [body.octets for body, _ in self._whole]
        self._memory.charge(self.json_bytes + starts.nbytes)
        octets = np.concatenate(pieces) if pieces else np.empty(0, np.uint8)
        return PackedStrings(self.dtype, shape, starts.reshape(-1), octets=octets)


class _Items(WholeBody):
    """A JSON response with base64 output: `size` bytes of items, or `strings` strings that take at most `size` bytes.

    Once the response is complete, `octets` holds the items and, for strings, `starts` holds their offsets.
    """

    def __init__(self, size: int, strings: int | None, memory: Memory) -> None:
        super().__init__(size * 4 // 3 + _ANSWER_ROOM, memory)
        self._size = size
        self._strings = strings
        self.octets: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.starts: NDArray[np.int64] = np.empty(0, np.int64)

    def finish(self) -> None:
        """Decode the items. Raises BadAnswer and overloaded."""
        self._memory.charge(len(self.body))
        try:
            self.octets = np.frombuffer(
                pybase64.b64decode(self.document()["output"]["base64"], validate=True), np.uint8
            )
        except (ValueError, KeyError, TypeError) as error:
            raise BadAnswer(f"the answer is not the requested JSON: {error}") from None
        if self._strings is None:
            if self.octets.size != self._size:
                raise BadAnswer(f"the answer has {self.octets.size} bytes of items in place of {self._size}")
            return
        self.octets.flags.writeable = False
        self.starts = np.empty(self._strings, np.int64)
        self._memory.charge(self.starts.nbytes)
        found, fault, wrong = read_frames.run(self.octets, self._strings, self.starts)
        if fault or wrong >= 0 or found != self._strings:
            raise BadAnswer("the strings of the answer are not framed as its shape says")


def as_rows(out: NDArray[Any], row_bytes: int) -> NDArray[Any]:
    """View a flat, contiguous output as one item per row (fastest in NumPy), or as 2-D bytes if rows are wide."""
    if row_bytes <= _EXACT_ROW:
        return out.view(_void_type(row_bytes))
    return out.view(np.uint8).reshape(-1, row_bytes)


@lru_cache(256)
def _void_type(size: int) -> np.dtype[np.void]:
    return np.dtype((np.void, size))


# Indices


def is_out_of_bounds(indices: NDArray[Any], dims: Sequence[int], wrap: bool) -> bool:
    """Return whether any component of flat indices is out of bounds.

    The bounds are [-size, size - 1] if `wrap` is true, and [0, size - 1] otherwise.
    """
    if not indices.size:
        return False
    components = indices.reshape(-1, len(dims))
    lowest, highest = components.min(axis=0).tolist(), components.max(axis=0).tolist()
    return any(
        high >= size or low < (-size if wrap else 0) for size, low, high in zip(dims, lowest, highest, strict=True)
    )


# Requests, by range index


@lru_cache(256)
def _dialect(operator: OperatorName, dtype: DType) -> bytes:
    """Return the query text for a dialect that accepts the type, or "" if the operator's default dialect does."""
    default, *others = OPERATORS[operator].dialects.values()
    if dtype.name in default.data_dtypes:
        return b""
    return b"&dialect=" + next(row.name for row in others if dtype.name in row.data_dtypes).encode()


def row_requests(
    version: ShardedVersion,
    indices: NDArray[np.int64],
    dims: Sequence[int],
    output: Output,
    tail: tuple[int, ...],
    *,
    wrap: bool = False,
) -> dict[int, RangeRequest]:
    """Build GatherND requests for flat `indices`: tuples with one component per size in `dims`, starting at axis 0.

    Row i of the output belongs to tuple i and has the shape `tail`. Raises IndexError if a component is out of bounds;
    see `is_out_of_bounds`.
    """
    parts = split(indices, dims, wrap, version.stops)
    depth = len(dims)
    items = parts.moved.view(np.uint8).data
    requests = {}
    width = 8 * depth
    begin = 0
    query = output.query + _dialect("gathernd", output.dtype)
    for number, end in zip(parts.ranges, parts.bounds[1:], strict=True):
        count = end - begin
        places = parts.order[begin:end]
        head = _indices_header(count, depth)
        body: list[Buffer]
        if count * width <= _LARGE:
            body = [head + items[begin * width : end * width]]
        else:
            body = [head, items[begin * width : end * width]]
        sink = output.sink(places, (count, *tail))
        requests[number] = RangeRequest("gathernd", query, body, output, sink, count, places)
        begin = end
    return requests


def key_requests(
    keys: KeyColumn,
    counts: Iterable[int],
    output: Output,
    octets: NDArray[np.uint8],
    found: NDArray[np.bool_],
    tail: tuple[int, ...],
) -> dict[int, RangeRequest]:
    """Build gathers by key: the first counts[0] of `keys` from range 0, and so on. Strings must be contiguous.

    Row i of the output belongs to key i and has the shape `tail`; its bytes go to `octets`. found[i] is set to whether
    the table has key i.
    """
    query = output.query + _dialect("gather", output.dtype) + b"&missing=fill&found=true"
    requests = {}
    begin = 0
    for number, count in enumerate(counts):
        if not count:
            continue
        end = begin + count
        rows = octets[begin * output.row_bytes : end * output.row_bytes]
        marks = DTYPES["bool"], (count,), found[begin:end]
        sink = WholeTensors({OUTPUT: (output.dtype, (count, *tail), rows), FOUND: marks})
        requests[number] = RangeRequest("gather", query, _keys_body(keys.rows(begin, end)), output, sink, count)
        begin = end
    return requests


def _keys_body(keys: KeyColumn) -> list[Buffer]:
    """Return keys in the form of a gather's body."""
    if keys.dtype != "string":
        return [_integers_header(keys.dtype, len(keys)), keys.key_bytes.data]
    starts, stops = keys.bounds()
    begin, end = int(starts[0]), int(stops[-1])
    offsets = np.append(starts, end) - begin
    return [keys_head(KeysSpec("string", len(keys), end - begin)), offsets.tobytes(), keys.keys[begin:end].data]


@lru_cache(4096)
def _integers_header(dtype: KeyType, count: int) -> bytes:
    return keys_head(KeysSpec(dtype, count))


@lru_cache(4096)
def _indices_header(count: int, depth: int) -> bytes:
    return write_header("indices", _INT64, (count, depth), 8 * count * depth)


def block_requests(
    version: ShardedVersion,
    indices: NDArray[np.int64],
    shape: tuple[int, ...],
    output: Output,
    output_shape: tuple[int, ...],
    operator: OperatorName,
    parameters: Mapping[str, object],
    *,
    shared: bool,
) -> dict[int, RangeRequest]:
    """Build a request using `operator` for every range. The part of the output for a range's rows is contiguous.

    `shape` is the shape of `indices`. Each range receives the indices of its rows, or all indices if they are `shared`.
    Table rows from output_shape[0] on are not requested.
    """
    query = output.query + b"".join(f"&{name}={value}".encode() for name, value in parameters.items())
    if "dialect" not in parameters:
        query += _dialect(operator, output.dtype)
    items = indices.reshape(-1).view(np.uint8).data
    width = 8 * (len(indices) if shared else prod(shape[1:]))
    requests = {}
    for number, one in enumerate(version.ranges):
        begin, end = one.start, min(one.stop, output_shape[0])
        if begin >= end:
            break
        own = items if shared else items[begin * width : end * width]
        head = write_header("indices", _INT64, shape if shared else (end - begin, *shape[1:]), len(own))
        sink = output.sink(slice(begin, end), (end - begin, *output_shape[1:]))
        requests[number] = RangeRequest(operator, query, [head, own], output, sink, end - begin)
    return requests
