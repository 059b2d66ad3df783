"""Pull a segment: read its rows from another shard, or from the source of an import, and write them to the store.

Rows are hashed as they are written, and are committed only if their digest is the one in the order. If it is not, or if
the pull is canceled, nothing remains in the store.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from ssl import SSLContext
from threading import Event
from typing import Final, TypeAlias, TypeVar

from app.api.own_header_fields import NODE
from app.api.route_table import path_of
from app.api.upload_receiver import UploadReceiver
from app.catalogue.conditions import ALWAYS, Conditions
from app.cluster.shard.pull_order import PullOrder, PullSource
from app.cluster.shard.read_from_origin import read_origin
from app.cluster.shard_map import digest_of
from app.dispatch.request_thread_pool import ClientGone
from app.errors import GatherError
from app.formats.body_formats import RAW, SAFETENSORS_FILE
from app.formats.npy import Start
from app.formats.safetensors.upload import read_start
from app.imports.source import SourceFailed
from app.imports.source_urls import AllowedSources
from app.memory.budget import UNCOUNTED
from app.store import LocalStore, Metadata
from app.store.files.write_uploaded_tensor import Upload, UploadSpec
from app.store.store_errors import storage_errors
from app.tensors.buffer_type import Buffer

PIECE_BYTES: Final = 1 << 20
CONNECT_S: Final = 5.0
SILENT_S: Final = 30.0
"""Seconds without a byte after which a source counts as lost."""
_OF_THE_STORE: Final = ("insufficient_storage", "limit_exceeded")
"""Codes of errors in this shard's store. They would recur with another source."""

Sink: TypeAlias = Callable[[Buffer], None]
Taken = TypeVar("Taken")


class Pull:
    """One pull. A thread calls `run`; `cancel` ends it from another thread.

    Shards are called using the API key `key`, over TLS if `tls` is given. `allowed` lists the origins that may be read.
    """

    def __init__(
        self,
        store: LocalStore,
        tensor: str,
        order: PullOrder,
        key: str | None,
        tls: SSLContext | None,
        allowed: AllowedSources,
    ) -> None:
        self._store = store
        self._tensor = tensor
        self._order = order
        self._key = key
        self._tls = tls
        self._allowed = allowed
        self._cancelled = Event()
        self._connection: HTTPConnection | None = None
        self._conditions = ALWAYS
        """The conditions that the stored data under this name must meet when the pull commits."""

    def run(self) -> tuple[Metadata, bool]:
        """Return the complete, durable segment, and whether this call pulled it. Blocks.

        Raises insufficient_storage, limit_exceeded, ClientGone if the pull is canceled, and shard_unavailable if no
        source has the rows.
        """
        found, self._conditions = _find_segment(self._store, self._tensor)
        if found is not None and self._order.sha256 in ("", segment_digest(found)):
            return found, False
        failures = []
        for source in self._order.sources:
            try:
                return self._receive(lambda sink: self._read_shard(source, sink)), True  # noqa: B023  (called at once)
            except SourceFailed as failure:
                self._check_running()
                failures.append(f"{source.address}: {failure}")
        origin, rows = self._order.origin, self._order.origin_rows
        if origin:
            try:
                order = self._order
                return self._receive(
                    lambda sink: read_origin(origin, rows, order.dtype, order.shape, self._allowed, sink)
                ), True
            except SourceFailed as failure:
                failures.append(f"{origin}: {failure}")
        raise GatherError(
            "shard_unavailable",
            f"{self._tensor} cannot be pulled: {'; '.join(failures) or 'the order names no source'}",
            retry_after=1,
        )

    def cancel(self) -> None:
        """Cancel the pull. Thread-safe."""
        self._cancelled.set()
        connection = self._connection
        opened = None if connection is None else connection.sock
        if opened is not None:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    def _receive(self, read: Callable[[Sink], None]) -> Metadata:
        """Call `read` with a sink, and commit the data that it writes. Raises SourceFailed and the errors of `run`."""
        order = self._order
        receiver = UploadReceiver(self._start_of, self._begin, sys.maxsize, encoding=None, digest=None)
        try:
            read(lambda piece: self._write(receiver, piece))
            self._check_running()
            upload = _with_source_errors(receiver.end)
            rows, keys = upload.describe().sha256, upload.keys
            digest = digest_of(rows, None if keys is None else keys.sha256)
            if order.sha256 not in ("", digest):
                raise SourceFailed(f"it has other rows: their digest is {digest} and not {order.sha256}")
        except BaseException:
            receiver.abandon()
            raise
        return self._store.put(upload, self._conditions)[0]

    def _start_of(self, head: bytearray, whole: bool) -> Start | None:
        """Return the start of the data from a source.

        If there are no keys, a source sends only the rows, so their description comes from the order.
        """
        order = self._order
        start = Start(order.dtype, order.shape, 0) if order.keys is None else read_start(head, UNCOUNTED)
        if start is None and whole:
            raise SourceFailed("it broke off before its rows")
        return start

    def _begin(self, start: Start) -> Upload:
        order = self._order
        found = start.dtype, start.shape, None if start.keys is None else start.keys.dtype
        if found != (order.dtype, order.shape, order.keys):
            raise SourceFailed(f"it has {found}, and not {order.dtype.name} of {order.shape} with {order.keys} keys")
        return self._store.upload(UploadSpec(self._tensor, order.dtype, order.shape, keep=1, keys=start.keys))

    def _write(self, receiver: UploadReceiver, piece: Buffer) -> None:
        self._check_running()
        _with_source_errors(lambda: receiver.take(piece))

    def _check_running(self) -> None:
        if self._cancelled.is_set():
            raise ClientGone

    def _read_shard(self, source: PullSource, sink: Sink) -> None:
        """Read the ordered rows from a shard into `sink`. Raises SourceFailed if the shard does not send them."""
        connection = shard_connection(source.address, self._tls, CONNECT_S)
        try:
            connection.connect()
            connection.sock.settimeout(SILENT_S)
            self._connection = connection
            self._check_running()  # in case `cancel` was called before the connection was set
            answer = self._ask(connection, source)
            left = int(answer.headers["Content-Length"])
            piece = memoryview(bytearray(min(left, PIECE_BYTES)))
            while left:
                count = answer.readinto(piece[:left])
                if not count:
                    raise SourceFailed(f"it broke off {left} bytes before the end")
                sink(piece[:count])
                left -= count
        except (OSError, HTTPException) as error:
            raise SourceFailed(str(error) or type(error).__name__) from None
        finally:
            self._connection = None
            connection.close()

    def _ask(self, connection: HTTPConnection, source: PullSource) -> HTTPResponse:
        """Request the rows, and return the response after checking its type, shape and size."""
        order = self._order
        rows = "" if source.rows is None else f"?rows={source.rows[0]}:{source.rows[1]}"
        fields = {"Accept": (RAW if order.keys is None else SAFETENSORS_FILE).media_type}
        if source.node:
            fields[NODE] = source.node
        if self._key is not None:
            fields["Authorization"] = f"Bearer {self._key}"
        connection.request("GET", path_of("tensorContent", name=source.tensor) + rows, headers=fields)
        answer = connection.getresponse()
        if answer.status != 200:
            raise SourceFailed(f"status {answer.status}: {answer.read(300).decode(errors='replace')}")
        found = tuple(answer.headers[name] for name in ("X-Gathernd-Dtype", "X-Gathernd-Shape", "Content-Length"))
        size = str(order.size) if order.size and order.keys is None else found[2]
        wanted = order.dtype.name, ",".join(map(str, order.shape)), size
        if found != wanted or found[2] is None:
            raise SourceFailed(f"it has {found}, and not {wanted} (dtype, shape, bytes)")
        return answer


def shard_connection(address: str, tls: SSLContext | None, timeout: float) -> HTTPConnection:
    """Return a connection to a shard, over TLS if `tls` is given. It is opened on first use."""
    host, _, port = address.rpartition(":")
    if tls is not None:
        return HTTPSConnection(host.strip("[]"), int(port), timeout=timeout, context=tls)
    return HTTPConnection(host.strip("[]"), int(port), timeout=timeout)


def _find_segment(store: LocalStore, tensor: str) -> tuple[Metadata | None, Conditions]:
    """Return a segment as `find_complete_segment` does, and conditions that hold until other data replaces it.

    During the pull, the range may be opened and its rows copied from the primary. Older rows must not replace them.
    """
    etag = store.etag_to_replace(tensor)
    return find_complete_segment(store, tensor), Conditions(none_match=("*",)) if etag is None else Conditions(
        match=(etag,)
    )


def find_complete_segment(store: LocalStore, tensor: str) -> Metadata | None:
    """Return a complete segment of this shard, or None if it is missing or damaged."""
    try:
        return store.metadata(tensor)
    except GatherError as problem:
        if problem.code not in ("tensor_not_found", "tensor_damaged"):
            raise
        return None


def segment_digest(segment: Metadata) -> str:
    """Return the digest for comparing a segment with other shards' segments."""
    return digest_of(segment.sha256, None if segment.keys is None else segment.keys.sha256)


def _with_source_errors(work: Callable[[], Taken]) -> Taken:
    """Call `work`, which passes bytes from a source to the upload.

    Raises SourceFailed if the bytes are not valid rows.
    """
    try:
        with storage_errors():
            return work()
    except GatherError as problem:
        if problem.code in _OF_THE_STORE:
            raise
        raise SourceFailed(problem.detail) from None
