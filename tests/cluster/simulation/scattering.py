"""A scatter on a simulated router: the key is bound to a content, then each range is asked until it is done."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from app.cluster.catalogue.ranges import open_ranges
from app.cluster.shard_map import RowRange, ShardedVersion, ShardMap
from tests.cluster.simulation.scatter_truth import Scatter
from tests.cluster.simulation.service_calls import ScatterRange

if TYPE_CHECKING:
    from tests.cluster.simulation.router import Router

DEADLINE = 10.0
ANSWER_AFTER = 4.0
PAUSE = 0.3


@dataclass(frozen=True, slots=True)
class ScatterRequest:
    """What a client sends: rows as fractions of the size of a table, to which 1 is added, or which are set."""

    reference: str
    key: str
    fractions: tuple[float, ...]
    value: int | None


async def route_scatter(router: Router, asked: ScatterRequest, session: dict[str, int]) -> str:
    """Make one scatter by one router. Returns an error's code, "" if it is made in all ranges."""
    end = router.world.now + DEADLINE
    named = router.served.find(asked.reference)
    if named is None:
        return "tensor_not_found"
    content_id = await router.client.bind(asked.key, named[1].content_id)
    if content_id is None:
        return "shard_unavailable"
    found = _find(router.served, content_id)
    if found is not None and any(one.primary is None for one, _ in _touched(found[1], asked)):
        name, version = found
        if code := await router.client.transact(partial(open_ranges, name=name, number=version.number)):
            return code
        found = _find(router.served, content_id)
    if found is None:
        return "precondition_failed"
    touched = _touched(found[1], asked)
    codes = await asyncio.gather(
        *(_scatter(router, content_id, one.tensor, Scatter(asked.key, rows, asked.value), session, end)
          for one, rows in touched)
    )  # fmt: skip
    return next(filter(None, codes), "")


async def _scatter(
    router: Router, content_id: str, tensor: str, scatter: Scatter, session: dict[str, int], end: float
) -> str:
    """Ask the primary of a range; ask again, with the newest map, until it answers or there is no time left."""
    while router.world.now < end:
        found = _find(router.served, content_id)
        own = [] if found is None else [one for one in found[1].ranges if one.tensor == tensor]
        if not own:
            return "precondition_failed"  # the version has gone, or a closed range was cut in two
        primary = own[0].primary
        if primary is not None and primary.address:
            asked = ScatterRange(next(router.world.ids), tensor, scatter)
            answer = await router.ask(primary.address, asked, ANSWER_AFTER)
            if answer is not None and answer.is_done:
                router.checks.scatters.acknowledged(tensor, scatter.key, answer.sequence, router.world.now)
                session[tensor] = max(answer.sequence, session.get(tensor, 0))
                return ""
        await router.client.refresh()
        await asyncio.sleep(PAUSE)
    return "shard_unavailable"


def _touched(version: ShardedVersion, asked: ScatterRequest) -> list[tuple[RowRange, tuple[int, ...]]]:
    """The ranges with the rows that are asked for, by their numbers in the range."""
    rows = {int(fraction * version.rows) for fraction in asked.fractions if version.rows}
    found = [
        (one, tuple(sorted(row - one.start for row in rows if one.start <= row < one.stop))) for one in version.ranges
    ]
    return [(one, own) for one, own in found if own]


def _find(served: ShardMap, content_id: str) -> tuple[str, ShardedVersion] | None:
    """The table and version that has a content."""
    for name, table in served.tables.items():
        for version in table.versions:
            if version.content_id == content_id:
                return name, version
    return None
