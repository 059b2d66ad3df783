"""The clients of a simulated cluster: they look up, publish, scatter, remove versions, drain and so on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count

from app.cluster.catalogue.transitions import (
    drain,
    remove_versions,
    set_replicas,
    undrain,
)
from tests.cluster.simulation.checks import Checks
from tests.cluster.simulation.router import Lookup, Router, SimulatedUpload
from tests.cluster.simulation.scattering import ScatterRequest, route_scatter
from tests.cluster.simulation.truth import Content, Violation
from tests.cluster.simulation.world import World

TABLES = ("items", "users")


class Clients:
    """All clients; `routers` gives those that live."""

    def __init__(
        self, world: World, checks: Checks, routers: Callable[[], list[Router]], url_share: float, ranges: int
    ) -> None:
        self._world = world
        self._checks = checks
        self._routers = routers
        self._url_share = url_share
        self._ranges = ranges
        self._ids = count(1)
        self._sessions: list[dict[str, int]] = [{} for _ in range(3)]
        """The sequences by range that each of these connections has seen."""
        self._scatters = count(1)
        self.must_answer = False
        """Whether every lookup has to be answered: nothing fails that two replicas do not make good."""

    def _router(self) -> Router | None:
        routers = self._routers()
        return self._world.random.choice(routers) if routers else None

    def _table(self) -> str:
        """A table that has versions, if there is one."""
        known = [name for name, one in self._checks.latest.tables.items() if one.versions]
        return self._world.random.choice(known or TABLES)

    def lookup(self) -> None:
        """A lookup, by the name of a table or a version."""
        router, random = self._router(), self._world.random
        if router is None:
            return
        tables = router.served.tables
        reference = random.choice(TABLES)
        if reference in tables and random.random() < 0.3:
            reference = f"{reference}@{random.choice(tables[reference].versions).number}"
        since, session = router.served.generation, random.choice(self._sessions)
        fractions = [random.random() for _ in range(random.randrange(1, 9))]

        async def ask() -> None:
            outcome, rows = await Lookup(router, reference, fractions, session).run()
            if outcome == "done":
                self._checks.answered(reference, since, fractions, rows)
            elif outcome == "tensor_not_found":
                self._checks.not_found(reference, since)
            elif self.must_answer:
                raise Violation(f"a lookup of {reference} failed ({outcome}), and one shard at most was at fault")

        router.start(ask)

    def scatter(self) -> None:
        """A scatter to some rows, which is sent again with its key, to any router, until it is answered."""
        random = self._world.random
        fractions = [random.random() for _ in range(random.randrange(1, 4))]
        value = random.randrange(100) if random.random() < 0.2 else None
        asked = ScatterRequest(self._table(), f"key{next(self._scatters)}", tuple(fractions), value)
        self._try(asked, random.choice(self._sessions), random.randrange(1, 8))

    def _try(self, asked: ScatterRequest, session: dict[str, int], tries: int) -> None:
        router, random = self._router(), self._world.random
        is_over = False

        def done(code: str) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            if code in ("given up", "shard_unavailable") and tries > 1:
                self._world.after(random.random() * random.choice((0.5, 5.0)), self._try, asked, session, tries - 1)

        async def scatter(router: Router) -> None:
            done(await route_scatter(router, asked, session))

        if router is not None:
            self._world.after(15.0, done, "given up")
            router.start(scatter, router)

    def publish(self) -> None:
        """A new version of a table."""
        router, random = self._router(), self._world.random
        if router is None:
            return
        content_id = f"content{next(self._ids)}"
        url = f"https://host/{content_id}" if random.random() < self._url_share else ""
        rows = 0 if random.random() < 0.03 else random.randrange(1, 40)
        content = Content(content_id, random.choice(TABLES), rows, random.choice((1, 1, 2, 3)), url)
        self._checks.contents[content_id] = content

        async def publish() -> None:
            if not await SimulatedUpload(router, content, self._ranges).run():
                self._checks.publish_acknowledged(content_id)

        router.start(publish)

    def drain(self, nodes: list[str]) -> None:
        """Drain a machine, or take it back."""
        router, random = self._router(), self._world.random
        if router is None:
            return
        drained = sorted(self._checks.latest.drained)
        if drained and random.random() < 0.6:
            router.start(router.change, partial(undrain, node=random.choice(drained)))
        else:
            router.start(router.change, partial(drain, node=random.choice(nodes)))

    def undrain(self, node: str) -> None:
        """Take a machine back."""
        router = self._router()
        if router is not None:
            router.start(router.change, partial(undrain, node=node))

    def remove_version(self) -> None:
        """Remove a version."""
        router, random = self._router(), self._world.random
        versions = [] if router is None else _versions(router)
        if router is not None and versions:
            name, _, number = random.choice(versions).partition("@")
            self._checks.removals.add((name, int(number)))
            router.start(router.change, partial(remove_versions, reference=f"{name}@{number}"))

    def set_replicas(self) -> None:
        """Say how many replicas a table has."""
        router, random = self._router(), self._world.random
        if router is not None:
            table, replicas = self._table(), random.choice((1, 2, 2, 3))
            router.start(router.change, partial(set_replicas, name=table, replicas=replicas))


def _versions(router: Router) -> list[str]:
    return [f"{name}@{version.number}" for name, table in router.served.tables.items() for version in table.versions]
