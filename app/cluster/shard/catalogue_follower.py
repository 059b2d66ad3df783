"""Follow the catalogue in one process of a shard, and record when etcd last confirmed it.

Each process watches etcd. In addition, it reads the catalogue every REFRESH_S seconds and records when the read began;
the catalogue that it gets is at least as new as that time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread
from time import monotonic
from typing import Final

from app.cluster.catalogue.client import CatalogueClient
from app.cluster.catalogue.etcd import Database
from app.cluster.catalogue.listed_segments import Listed, listed_segments
from app.cluster.catalogue.records import Catalogue

REFRESH_S: Final = 3.0
logger = logging.getLogger("gathernd")


class CatalogueFollower:
    """Follow the catalogue. `changed` is called after each newer catalogue, from any thread."""

    def __init__(self, database: Database, changed: Callable[[], None] = lambda: None) -> None:
        self.client = CatalogueClient(database, lambda _: changed())
        self.confirmed_at = float("-inf")
        """When the last successful read of the catalogue began, in seconds of `monotonic`."""
        self._lock = Lock()
        self._ranges: tuple[Catalogue, Mapping[str, Listed]] = Catalogue(), {}

    def begin(self, stop: Event, each: Callable[[], None]) -> None:
        """Follow the catalogue in threads until `stop` is set.

        `each` is called after each read, before the time of the read is recorded.
        """
        Thread(target=self.client.watch, args=(stop,), name="catalogue", daemon=True).start()
        Thread(target=self._confirm, args=(stop, each), name="read-lease", daemon=True).start()

    @property
    def catalogue(self) -> Catalogue:
        """The newest known catalogue."""
        return self.client.catalogue

    def refresh(self) -> Catalogue:
        """Read the catalogue as of this call or later. Blocks. Raises OSError."""
        begun = monotonic()
        found = self.client.refresh()
        with self._lock:
            if self.confirmed_at > float("-inf"):
                self.confirmed_at = max(self.confirmed_at, begun)
        return found

    def open_ranges(self) -> Mapping[str, Listed]:
        """Return all open ranges by tensor name."""
        catalogue = self.catalogue
        known, found = self._ranges
        if catalogue is not known:
            is_same = (catalogue.ranges, catalogue.tables, catalogue.options) == (
                known.ranges, known.tables, known.options,
            )  # fmt: skip
            if not is_same:
                listed = listed_segments(catalogue) if catalogue.ranges else ()
                found = {one.tensor: one for one in listed if one.opened is not None}
            self._ranges = catalogue, found
        return found

    def _confirm(self, stop: Event, each: Callable[[], None]) -> None:
        while not stop.is_set():
            begun = monotonic()
            try:
                self.client.refresh()
                each()
                with self._lock:
                    self.confirmed_at = max(self.confirmed_at, begun)
            except OSError:
                pass  # `watch` reports it
            except Exception:
                logger.exception("the catalogue could not be read")
            stop.wait(REFRESH_S)
