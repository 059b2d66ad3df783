"""Catalogues in memory: after a change, as a database that nobody else changes would have them."""

from __future__ import annotations

from collections.abc import Callable

from app.cluster.catalogue.client import Transition
from app.cluster.catalogue.records import Catalogue, Change, apply_writes, to_json
from app.cluster.reconciler.catalogue_calls import CatalogueCalls


def applied(catalogue: Catalogue, change: Change | None) -> Catalogue:
    """The catalogue one revision later, by the bytes of the records; the same one for no change."""
    if change is None:
        return catalogue
    revision = catalogue.revision + 1
    written = {key: None if one is None else (to_json(one), revision) for key, one in change.puts.items()}
    return apply_writes(catalogue, revision, written)


def stands(catalogue: Catalogue, change: Change, now: Catalogue) -> bool:
    """Whether a change that was judged by `catalogue` is made in `now`, by etcd's rules."""
    exact = {*change.puts, *change.unchanged}
    return all(catalogue.revisions.get(key, 0) == now.revisions.get(key, 0) for key in exact) and all(
        revision <= catalogue.revision
        for key, revision in now.revisions.items()
        if key.startswith(change.no_newer or ("/",))
    )


class CataloguesInMemory(CatalogueCalls):
    """What a reconciler asks of a catalogue. `taken` is called after each change."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._now = catalogue
        self.taken: Callable[[], None] = lambda: None

    @property
    def catalogue(self) -> Catalogue:
        return self._now

    async def refresh(self) -> Catalogue:
        return self._now

    async def transact(self, transition: Transition) -> None:
        self.commit(transition(self._now))

    def commit(self, change: Change | None) -> None:
        self._now = applied(self._now, change)
        self.taken()
