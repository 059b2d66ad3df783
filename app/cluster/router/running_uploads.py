"""Track the uploads of a router's process, and remove the catalogue records of uploads that are over.

A record may outlive its upload: etcd may not have responded when the upload was given up, or the transaction that began
the upload may have arrived afterwards. As long as the process runs, its lease would keep the record, and with it the
rows on the shards.
"""

from __future__ import annotations

import logging
from functools import partial
from threading import Event, Lock, Thread
from typing import Final
from uuid import uuid4

from app.cluster.catalogue import transitions
from app.cluster.catalogue.client import CatalogueClient
from app.errors import GatherError

LOOK_S: Final = 10.0
"""Seconds between searches for records to remove, while uploads are running and after the last one."""
logger = logging.getLogger("gathernd")


class RunningUploads:
    """The uploads of one process, whose records contain its `router` ID. Methods do not block."""

    def __init__(self, client: CatalogueClient, look_s: float = LOOK_S) -> None:
        self.router = uuid4().hex
        self._client = client
        self._look_s = look_s
        self._running: set[str] = set()
        self._lock = Lock()
        self._wake = Event()
        self._ends: Thread | None = None

    def begin(self) -> str:
        """Begin an upload, and return its content ID."""
        content_id = uuid4().hex
        with self._lock:
            self._running.add(content_id)
            if self._ends is None:
                self._ends = Thread(target=self._end_records, name="end-uploads", daemon=True)
                self._ends.start()
        return content_id

    def end(self, content_id: str) -> None:
        """Record that an upload was published or given up.

        If the upload has a record, the record is removed in the background.
        """
        with self._lock:
            self._running.discard(content_id)
        self._wake.set()

    def _end_records(self) -> None:
        while True:
            is_quiet = not self._wake.wait(self._look_s)
            self._wake.clear()
            over = self._ended_uploads()
            for content_id in over:
                try:
                    self._client.transact(partial(transitions.end_upload, content_id=content_id))
                except GatherError as error:
                    logger.warning("the record of the upload %s cannot be closed yet: %s", content_id, error.detail)
            is_over = (is_quiet and not over) or not self._holds_lease
            with self._lock:
                if is_over and not self._running:
                    self._ends = None
                    return

    @property
    def _holds_lease(self) -> bool:
        """Whether the lease still protects the records; otherwise, they are removed anyway."""
        lease = self._client.database.lease
        return lease is not None and lease.is_held

    def _ended_uploads(self) -> list[str]:
        """Return the uploads of this process that have a record and are no longer running."""
        uploads = self._client.catalogue.uploads
        with self._lock:
            own = [content_id for content_id, one in uploads.items() if one.router == self.router]
            return [content_id for content_id in own if content_id not in self._running]
