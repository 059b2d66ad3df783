"""The steps of one import, from beginning to end: its record and its upload. All methods do blocking I/O."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from app.errors import GatherError
from app.imports.source import Checksum, SourceFailed, import_failed
from app.imports.source_urls import SourceUrl
from app.imports.tensor_in_file import Found
from app.store import Conditions, LocalStore
from app.store.files.write_uploaded_tensor import Upload, UploadSpec, check_shape
from app.store.import_records import ImportFailure, ImportRecord, RunningImport
from app.store.store_errors import storage_errors
from app.store.tensor_store_interface import TensorStore
from app.tensors.buffer_type import Buffer
from app.tensors.little_endian_items import bounded_product


@dataclass(frozen=True, slots=True)
class ImportSpec:
    """An import request: `tensor` in the file at `url` becomes the next version of tensor `name`.

    `keys` is the name of the tensor in that file that holds the row keys.
    """

    name: str
    url: SourceUrl
    tensor: str | None
    conditions: Conditions
    keep: int | None = None
    prefault: bool = False
    lock: bool = False
    note: str = ""
    replicas: int | None = None
    keys: str | None = None


class ImportSteps:
    """A running import. `found` locates its tensor in the source, which has `size` bytes and this checksum."""

    def __init__(
        self,
        request: ImportSpec,
        found: Found,
        checksum: Checksum | None,
        size: int | None,
        *,
        has_ranges: bool = False,
    ) -> None:
        self.done = 0
        self.span = found.begin, found.end
        self.key_spans = found.key_spans
        """The spans of the keys in the file; they precede the items."""
        self._has_ranges = has_ranges
        self._request = request
        self._start = found.start
        self._upload: Upload | None = None
        self._running: RunningImport | None = None
        self._ended = False
        self._checksum = checksum
        self._digest: Any = None
        self._head = found.head if found.end == size else None
        self._begin_digest()

    def _begin_digest(self) -> None:
        if self._checksum is not None and self._head is not None:
            self._digest = hashlib.new(self._checksum.algorithm, self._head, usedforsecurity=False)

    @property
    def record(self) -> ImportRecord:
        """The import's record. Call it only after `enter`."""
        assert self._running is not None
        return self._running.record

    @property
    def _key_bytes(self) -> int:
        return sum(end - begin for begin, end in self.key_spans)

    def enter(self, store: LocalStore, tensors: TensorStore | None = None) -> None:
        """Begin the upload into `tensors` (default: `store`), and insert the record into `store`.

        Raises SourceFailed, name_conflict, limit_exceeded and insufficient_storage.
        """
        request, start = self._request, self._start
        total = self.span[1] - self.span[0]
        check_shape(start.dtype, start.shape, store.limits, "/url")
        if bounded_product(start.shape, total + 1) * start.dtype.item_size != total:
            raise SourceFailed(f"it has {total} bytes of items, but its shape requires a different number")
        origin = _origin(request)
        spec = UploadSpec(
            request.name, start.dtype, start.shape, start.swap, start.fortran, request.prefault, request.lock,
            request.keep, origin, request.note, request.replicas,
            self._has_ranges and origin != "" and total > 0 and not start.swap, start.keys,
        )  # fmt: skip
        self._upload = (store if tensors is None else tensors).upload(spec)
        content = self._upload.id if tensors is None or tensors is store else ""
        self._running = store.imports.begin(
            request.name, request.url.shown, request.tensor, content, total + self._key_bytes
        )

    def undo(self) -> None:
        """Undo `enter`."""
        if self._upload is not None:
            with suppress(OSError):
                self._upload.abandon()
        if self._running is not None:
            self._running.undo()

    @property
    def is_pulled(self) -> bool:
        """Whether shards read the items. If they do, call `take_pulled` instead of `take`."""
        return self._upload is not None and self._upload.is_pulled

    def take_pulled(self) -> bool:
        """Process the next bytes from the shards. Returns whether more will follow. May raise the upload's errors."""
        assert self._upload is not None
        with storage_errors():
            piece = self._upload.take_pulled()
        if self._digest is not None:
            self._digest.update(piece)
        self.done += len(piece)
        return self.done < self.span[1] - self.span[0]

    def restart(self, tensors: TensorStore) -> None:
        """Discard what the shards have read, and begin a new upload for `take`. May raise the errors of `enter`."""
        assert self._upload is not None
        spec = self._upload.spec
        self._upload.abandon()
        self.done = 0
        self._begin_digest()
        self._upload = tensors.upload(replace(spec, has_ranges=False))

    def take(self, piece: Buffer) -> None:
        """Write the next bytes of items to the upload. May raise the upload's errors."""
        assert self._upload is not None
        if self._digest is not None:
            self._digest.update(piece)
        with storage_errors():
            self._upload.write(piece)
        self.done += len(piece)

    def record_progress(self, done: int) -> bool:
        """Store the number of bytes done. Returns whether to continue. Raises OSError."""
        assert self._running is not None
        return self._running.record_progress(done)

    def should_continue(self) -> bool:
        """Return whether to continue, or False if a request has canceled the import."""
        return self._running is None or self._running.should_continue()

    def commit(self, tensors: TensorStore) -> None:
        """Publish the next version of the tensor after all items have arrived.

        Raises SourceFailed and the errors of `put`.
        """
        assert self._upload is not None
        assert self._running is not None
        if self._checksum is not None and self._digest is not None and self._digest.digest() != self._checksum.digest:
            raise SourceFailed(f"its bytes do not match the {self._checksum.algorithm} checksum that the source gives")
        with storage_errors():
            self._upload.finish()
        metadata, _ = tensors.put(self._upload, self._request.conditions)
        self._ended = True
        self._running.end(state="done", done=self.done, metadata=metadata)

    def fail(self, error: GatherError) -> None:
        """End the import as failed and remove its upload."""
        self._end(state="failed", error=ImportFailure(error.code, error.detail, error.hint, dict(error.facts)))

    def stop(self, *, closing: bool) -> None:
        """End the import, which was canceled by a request or by the shutdown. Does nothing after the commit."""
        if closing:
            url = self._request.url.shown
            self.fail(import_failed(url, "the service was stopped in the meantime", "Send the request again."))
        else:
            self._end(state="cancelled")

    def _end(self, **members: Any) -> None:
        assert self._upload is not None
        assert self._running is not None
        if self._ended:
            return
        self._ended = True
        with suppress(OSError):
            self._upload.abandon()
        self._running.end(done=self.done, **members)


def _origin(request: ImportSpec) -> str:
    """Return a URL or URL#TENSOR from which the tensor can be read again.

    Returns "" for a URL with a query, because the query may hold credentials.
    """
    if request.url.query:
        return ""
    return request.url.shown + (f"#{request.tensor}" if request.tensor is not None else "")
