"""A reconciler that is told to end does so, whatever else comes at that moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.cluster.catalogue.records import Catalogue, Mark
from app.cluster.reconciler import reconciler
from app.cluster.reconciler.reconciler import Reconciler

TURNS = 20
"""Turns of the event loop, more than a round out of office takes."""


class OutOfOffice:
    """In the place of a client of the catalogue, which says that another reconciler is in office."""

    catalogue = Catalogue(reconciler=Mark("other"), revisions={"reconciler": 1})

    def taken(self) -> None:
        """The reconciler sets it: called for each newer catalogue."""


def test_it_ends_though_a_newer_catalogue_comes_in_the_same_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "REST", 0.0)
    monkeypatch.setattr(reconciler, "LEAST_REST_S", 0.0)

    async def end() -> bool:
        catalogues: Any = OutOfOffice()
        shards: Any = None
        running = asyncio.create_task(Reconciler(catalogues, shards).run())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        catalogues.taken()
        running.cancel()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return running.done()

    assert asyncio.run(end())
