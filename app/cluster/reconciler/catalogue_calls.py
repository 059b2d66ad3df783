"""Call the catalogue from a reconciler's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread

from app.cluster.catalogue.client import CatalogueClient, Transition
from app.cluster.catalogue.etcd import Database
from app.cluster.catalogue.records import Catalogue


class CatalogueCalls:
    """A client of the catalogue for an event loop.

    `taken` is called on the loop whenever there is a newer catalogue.
    """

    def __init__(self, database: Database) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = CatalogueClient(database, self._notify_loop)
        self._stop = Event()
        self.taken: Callable[[], None] = lambda: None
        Thread(target=self._client.watch, args=(self._stop,), name="watch", daemon=True).start()

    def _notify_loop(self, _: Catalogue) -> None:
        with suppress(RuntimeError):  # raised if the loop is closed
            self._loop.call_soon_threadsafe(self.taken)

    @property
    def catalogue(self) -> Catalogue:
        """The newest known catalogue."""
        return self._client.catalogue

    async def refresh(self) -> Catalogue:
        """Return the catalogue as of this call or later. Raises OSError."""
        return await asyncio.to_thread(self._client.refresh)

    async def transact(self, transition: Transition) -> None:
        """Change the catalogue; see `CatalogueClient.transact`."""
        await asyncio.to_thread(self._client.transact, transition)

    def close(self) -> None:
        """Stop following the catalogue."""
        self._stop.set()
