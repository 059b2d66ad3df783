"""The requests of `gathernd bench`, and the client that sends them over keep-alive connections and times them."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from http.client import HTTPConnection
from time import perf_counter, thread_time
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from app.api.route_table import path_of
from app.cli.bench_server import BenchFailed

CONNECTIONS: Final = 16
"""Connections that have a request under way while the rate is measured."""
CLIENT: Final = (
    f"Asked by one thread of Python over raw sockets on the same machine: p50 and p99 on one connection, one request "
    f"after the other; requests/s on {CONNECTIONS} connections, each with a request under way. The client column is "
    f"the processor time that this thread takes for a request and is part of the other times: where it comes near to "
    f"a second divided by requests/s, the client is the limit and not the service."
)
TABLE_SHAPE: Final = (200_000, 64)
LOOKUP_ROWS: Final = 256
INLINE_SHAPE: Final = (1_000, 1_000)
INLINE_TUPLES: Final = 10_000
_TABLE: Final = "bench"
_JSON: Final = "application/json"
_BINARY: Final = "application/x-safetensors"
_TIMEOUT_S: Final = 60
_HEADER_END: Final = b"\r\n\r\n"
_SIZE_FIELD: Final = b"content-length:"
_ALIGNMENT: Final = 8


@dataclass(frozen=True)
class Work:
    """A request that is sent again and again, and what its answer must be."""

    name: str
    path: str
    content_type: str
    body: bytes
    expected: NDArray[np.float32]

    @property
    def message(self) -> bytes:
        """The request as it is sent."""
        header = f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {self.content_type}\r\n"
        return f"{header}Content-Length: {len(self.body)}\r\n\r\n".encode() + self.body

    def check(self, body: bytes) -> None:
        """Raises BenchFailed unless `body` holds the values that NumPy gathers."""
        read = _output_of_json if self.content_type == _JSON else _output_of_safetensors
        if not np.array_equal(read(body), self.expected):
            raise BenchFailed(f"{self.name}: the answer is not what NumPy gathers")


def make_table() -> NDArray[np.float32]:
    """The resident table, random float32 of TABLE_SHAPE."""
    return np.random.default_rng(1).random(TABLE_SHAPE, np.float32)


def put_table(port: int, table: NDArray[np.float32]) -> None:
    """Upload the table. Raises BenchFailed where the server refuses it."""
    shape = ",".join(map(str, table.shape))
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request(
            "PUT",
            f"{path_of('putTensor', name=_TABLE)}?dtype=float32&shape={shape}",
            table.data.cast("B"),
            {"Content-Type": "application/octet-stream"},
        )
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 201:
        raise BenchFailed(f"the upload of the table was answered with {answer.status}: {body[:500]!r}")


def make_work(table: NDArray[np.float32]) -> list[Work]:
    """Every request, with what NumPy gathers for it."""
    gathernd = path_of("gathernd")
    source = np.random.default_rng(2)
    tiny = {
        "data": {"dtype": "float32", "shape": [2, 2], "values": [0, 1, 2, 3]},
        "indices": {"dtype": "int64", "shape": [2, 2], "values": [0, 0, 1, 1]},
    }
    rows = source.integers(0, len(table), (LOOKUP_ROWS, 1))
    lookup = {
        "data": {"tensor": _TABLE},
        "indices": {"dtype": "int64", "shape": list(rows.shape), "values": rows.ravel().tolist()},
    }
    found = table[rows[:, 0]]
    inline = source.random(INLINE_SHAPE, np.float32)
    tuples = source.integers(0, INLINE_SHAPE, (INLINE_TUPLES, 2))
    width = TABLE_SHAPE[1]
    return [
        Work("2×2 example, JSON", gathernd, _JSON, orjson.dumps(tiny), np.array([0, 3], np.float32)),
        Work(f"lookup of {LOOKUP_ROWS} rows of {width}, JSON", gathernd, _JSON, orjson.dumps(lookup), found),
        Work(
            f"lookup of {LOOKUP_ROWS} rows of {width}, binary",
            f"{gathernd}?tensor={_TABLE}",
            _BINARY,
            _safetensors({"indices": rows}),
            found,
        ),
        Work(
            f"4 MB and {INLINE_TUPLES:,} tuples inline, binary",
            gathernd,
            _BINARY,
            _safetensors({"data": inline, "indices": tuples}),
            inline[tuple(tuples.T)],
        ),
    ]


def measure(port: int, work: Work, seconds: float) -> dict[str, Any]:
    """Requests a second, and microseconds at two quantiles and of the client itself.

    Takes about twice `seconds`. Raises BenchFailed where an answer is not 200, or its values are wrong.
    """
    message = work.message
    try:
        with ExitStack() as stack:
            connections = [stack.enter_context(_Connection(port, work.name)) for _ in range(CONNECTIONS)]
            for connection in connections:
                connection.send(message)
                work.check(connection.answer())
            times = np.array(list(_times(connections[0], message, seconds)))
            rate, client_s = _rate(connections, message, seconds)
    except OSError as error:
        raise BenchFailed(f"{work.name}: {error}") from error
    p50, p99 = np.percentile(times, (50, 99)) * 1e6
    return {
        "work": work.name,
        "requests_per_s": rate,
        "p50_us": float(p50),
        "p99_us": float(p99),
        "client_us": client_s * 1e6,
    }


def _times(connection: _Connection, message: bytes, seconds: float) -> Iterator[float]:
    """Seconds of each of the requests that are sent one after the other for `seconds`."""
    until = perf_counter() + seconds
    done = 0.0
    while done < until:
        begun = perf_counter()
        connection.send(message)
        connection.answer()
        done = perf_counter()
        yield done - begun


def _rate(connections: list[_Connection], message: bytes, seconds: float) -> tuple[float, float]:
    """Requests a second with one under way on each connection, and this thread's processor time for one, in seconds."""
    waiting = deque(connections)
    for connection in waiting:
        connection.send(message)
    count = 0
    begun, begun_cpu = perf_counter(), thread_time()
    until = begun + seconds
    while not count or perf_counter() < until:
        connection = waiting[0]
        connection.answer()
        connection.send(message)
        waiting.rotate(-1)
        count += 1
    elapsed, cpu = perf_counter() - begun, thread_time() - begun_cpu
    for connection in waiting:
        connection.answer()
    return count / elapsed, cpu / count


class _Connection:
    """A keep-alive connection whose every answer must be 200; `work` names it in errors."""

    def __init__(self, port: int, work: str) -> None:
        self._work = work
        self._socket = socket.create_connection(("127.0.0.1", port), _TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 16)

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, message: bytes) -> None:
        self._socket.sendall(message)

    def answer(self) -> bytes:
        """The body of the next answer. Raises BenchFailed for any but 200, and where the connection ends."""
        buffer = self._buffer
        got = 0
        while (end := buffer.find(_HEADER_END, 0, got)) < 0:
            got = self._receive(got)
        header = bytes(buffer[:end]).lower()
        place = header.find(_SIZE_FIELD)
        if not header.startswith(b"http/1.1 200 ") or place < 0:
            raise BenchFailed(f"{self._work}: the service answered {bytes(buffer[:got])[:1000]!r}")
        start = end + len(_HEADER_END)
        total = start + int(header[place + len(_SIZE_FIELD) :].split(b"\r\n", 1)[0])
        if total > len(buffer):
            buffer.extend(bytes(total - len(buffer)))
        while got < total:
            got = self._receive(got)
        return bytes(buffer[start:total])

    def _receive(self, got: int) -> int:
        """Receive behind the first `got` bytes of the buffer; how many there are then."""
        if got == len(self._buffer):
            self._buffer.extend(bytes(got))
        with memoryview(self._buffer) as view:
            size = self._socket.recv_into(view[got:])
        if size == 0:
            raise BenchFailed(f"{self._work}: the service closed the connection in the middle of an answer")
        return got + size


_SAFETENSORS: Final[Mapping[str, str]] = {"float32": "F32", "int64": "I64"}


def _safetensors(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """A safetensors file of these tensors."""
    entries: dict[str, Any] = {}
    place = 0
    for name, array in tensors.items():
        kind = _SAFETENSORS[array.dtype.name]
        entries[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [place, place + array.nbytes]}
        place += array.nbytes
    header = orjson.dumps(entries)
    header += b" " * (-len(header) % _ALIGNMENT)
    return b"".join([len(header).to_bytes(8, "little"), header, *(array.tobytes() for array in tensors.values())])


def _output_of_safetensors(body: bytes) -> NDArray[np.float32]:
    start = 8 + int.from_bytes(body[:8], "little")
    entry = orjson.loads(body[8:start])["output"]
    begin, end = entry["data_offsets"]
    return np.frombuffer(body[start + begin : start + end], "<f4").reshape(entry["shape"])


def _output_of_json(body: bytes) -> NDArray[np.float32]:
    output = orjson.loads(body)["output"]
    return np.array(output["values"], np.float32).reshape(output["shape"])
