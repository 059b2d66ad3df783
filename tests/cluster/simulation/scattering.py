"""A scatter on a simulated router: the key is bound to a content, then each range is asked until it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from app.cluster.catalogue.ranges import open_ranges
from app.cluster.shard_map import RowRange, ShardedVersion, ShardMap
from tests.cluster.simulation.scatter_truth import Scatter
from tests.cluster.simulation.service_calls import Answer, ScatterRange

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


class RoutedScatter:
    """One request to one router."""

    def __init__(
        self, router: Router, asked: ScatterRequest, session: dict[str, int], done: Callable[[str], None]
    ) -> None:
        self._router = router
        self._asked = asked
        self._session = session
        self._done = done
        self._deadline = router.world.now + DEADLINE
        self._content_id = ""
        self._missing: set[str] = set()

    def begin(self) -> None:
        """Bind the key to what the name stands for now, unless it is bound."""
        named = self._router.served.find(self._asked.reference)
        if named is None:
            self._done("tensor_not_found")
        else:
            self._router.client.bind(self._asked.key, named[1].content_id, self._bound)

    def _bound(self, content_id: str | None) -> None:
        if content_id is None:
            self._done("shard_unavailable")
            return
        self._content_id = content_id
        found = _find(self._router.served, content_id)
        if found is None:
            self._done("precondition_failed")
            return
        name, version = found
        if any(one.primary is None for one, _ in self._touched(version)):
            change = partial(open_ranges, name=name, number=version.number)
            self._router.client.transact(change, lambda code: self._done(code) if code else self._ask_all())
        else:
            self._ask_all()

    def _touched(self, version: ShardedVersion) -> list[tuple[RowRange, tuple[int, ...]]]:
        """The ranges with the rows that are asked for, by their numbers in the range."""
        rows = {int(fraction * version.rows) for fraction in self._asked.fractions if version.rows}
        found = [
            (one, tuple(sorted(row - one.start for row in rows if one.start <= row < one.stop)))
            for one in version.ranges
        ]
        return [(one, own) for one, own in found if own]

    def _ask_all(self) -> None:
        found = _find(self._router.served, self._content_id)
        if found is None:
            self._done("precondition_failed")
            return
        touched = self._touched(found[1])
        self._missing = {one.tensor for one, _ in touched}
        if not touched:
            self._done("")
        for one, rows in touched:
            self._ask(one.tensor, rows)

    def _ask(self, tensor: str, rows: tuple[int, ...]) -> None:
        """Ask the primary of a range; ask again, with the newest map, until it answers or there is no time left."""
        router = self._router
        if router.world.now >= self._deadline:
            self._finish("shard_unavailable")
            return
        found = _find(router.served, self._content_id)
        own = [] if found is None else [one for one in found[1].ranges if one.tensor == tensor]
        if not own:
            self._finish("precondition_failed")  # the version has gone, or a closed range was cut in two
            return
        primary = own[0].primary
        again = partial(router.after, PAUSE, self._ask, tensor, rows)
        if primary is None or not primary.address:
            router.client.refresh(lambda _: again())
            return

        def answered(answer: Answer | None) -> None:
            if answer is not None and answer.is_done:
                self._acknowledged(tensor, answer.sequence)
            else:
                router.client.refresh(lambda _: again())

        scatter = Scatter(self._asked.key, rows, self._asked.value)
        asked = ScatterRange(next(router.world.ids), tensor, scatter)
        router.ask(primary.address, asked, router.world.now + ANSWER_AFTER, answered)

    def _acknowledged(self, tensor: str, sequence: int) -> None:
        self._router.checks.scatters.acknowledged(tensor, self._asked.key, sequence, self._router.world.now)
        self._missing.discard(tensor)
        self._session[tensor] = max(sequence, self._session.get(tensor, 0))
        if not self._missing:
            self._finish("")

    def _finish(self, code: str) -> None:
        done, self._done = self._done, _nothing
        done(code)


def _nothing(_: str) -> None:
    """The client has its answer."""


def _find(served: ShardMap, content_id: str) -> tuple[str, ShardedVersion] | None:
    """The table and version that has a content."""
    for name, table in served.tables.items():
        for version in table.versions:
            if version.content_id == content_id:
                return name, version
    return None
