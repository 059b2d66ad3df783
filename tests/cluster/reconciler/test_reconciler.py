"""A reconciler that is out of office, or told to end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from app.cluster.catalogue.records import Catalogue, Mark, Node, Options
from app.cluster.catalogue.transitions import mark_lost
from app.cluster.reconciler import failover, reconciler
from app.cluster.reconciler.reconciler import Reconciler
from app.cluster.reconciler.shard_calls import ShardCalls
from tests.cluster.catalogue.applying import CataloguesInMemory

TURNS = 20
"""Turns of the event loop, more than a round out of office takes."""


class Shards(ShardCalls):
    """Nobody asks them."""

    def __init__(self) -> None:
        pass


def led_by(name: str) -> Catalogue:
    """A catalogue with a running shard, in which a reconciler is in office."""
    catalogue = Catalogue(9, Options(), nodes={"a": Node("a:80", 1000)}, alive=frozenset("a"))
    return replace(catalogue, reconciler=Mark(name), revisions={"options": 1, "reconciler": 1})


def test_it_ends_though_a_newer_catalogue_comes_in_the_same_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told to end while another reconciler is in office."""
    monkeypatch.setattr(reconciler, "REST", 0.0)
    monkeypatch.setattr(reconciler, "LEAST_REST_S", 0.0)
    catalogues = CataloguesInMemory(led_by("other"))

    async def end() -> bool:
        running = asyncio.create_task(Reconciler(catalogues, Shards()).run())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        catalogues.taken()
        running.cancel()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return running.done()

    assert asyncio.run(end())


def test_what_is_judged_in_office_is_not_made_out_of_it() -> None:
    transition = failover.only_as_leader(lambda at: mark_lost(at, "a"), lambda at: at.reconciler == Mark("me"))
    made = transition(led_by("me"))
    assert made is not None
    assert "reconciler" in made.unchanged
    assert transition(led_by("other")) is None
