"""The clients of a simulated cluster: they look up, publish, move aliases, remove versions, drain, forget and so on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from app.catalogue.aliases import AliasMove, move_aliases
from app.cluster.catalogue.records import Catalogue, Change
from app.cluster.catalogue.transitions import (
    drain,
    forget_node,
    put_aliases,
    remove_alias,
    remove_versions,
    set_replicas,
    undrain,
)
from tests.cluster.simulation.checks import Checks
from tests.cluster.simulation.router import Router
from tests.cluster.simulation.scattering import ScatterRequest
from tests.cluster.simulation.truth import Content, Violation
from tests.cluster.simulation.world import World

TABLES = ("items", "users")
ALIASES = ("best", "test")


class Clients:
    """All clients; `routers` gives those that live. Aliases are changed by one client, one change after the other."""

    def __init__(
        self, world: World, checks: Checks, routers: Callable[[], list[Router]], url_share: float, ranges: int
    ) -> None:
        self._world = world
        self._checks = checks
        self._routers = routers
        self._url_share = url_share
        self._ranges = ranges
        self._ids = count(1)
        self._is_moving = False
        self.aliases: dict[str, set[str]] = {alias: {""} for alias in ALIASES}
        """What each alias may name when all is over, "" for nothing: also what changes without an answer wanted."""
        self.outcomes: dict[str, int] = {}
        self._sessions: list[dict[str, int]] = [{} for _ in range(3)]
        """The sequences by range that each of these connections has seen."""
        self._scatters = count(1)
        self.must_answer = False
        """Whether every lookup has to be answered: nothing fails that two replicas do not make good."""

    def _router(self) -> Router | None:
        routers = self._routers()
        return self._world.random.choice(routers) if routers else None

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1

    def lookup(self) -> None:
        """A lookup, by the name of a table, a version or an alias."""
        router, random = self._router(), self._world.random
        if router is None:
            return
        tables = router.served.tables
        reference = random.choice(TABLES)
        if reference in tables and random.random() < 0.3:
            reference = f"{reference}@{random.choice(tables[reference].versions).number}"
        elif random.random() < 0.3:
            reference = random.choice(ALIASES)
        since = router.served.generation
        fractions = [random.random() for _ in range(random.randrange(1, 9))]

        def done(outcome: str, rows: tuple[tuple[str, int], ...]) -> None:
            self._count(outcome)
            if outcome == "done":
                self._checks.answered(reference, since, fractions, rows)
            elif outcome == "tensor_not_found":
                self._checks.not_found(reference, since)
            elif self.must_answer:
                raise Violation(f"a lookup of {reference} failed ({outcome}), and one shard at most was at fault")

        router.lookup(reference, fractions, done, random.choice(self._sessions))

    def scatter(self) -> None:
        """A scatter to some rows, which is sent again with its key, to any router, until it is answered."""
        random = self._world.random
        names = [*TABLES, *(alias for alias, named in self.aliases.items() if named != {""})]
        fractions = [random.random() for _ in range(random.randrange(1, 4))]
        value = random.randrange(100) if random.random() < 0.2 else None
        asked = ScatterRequest(random.choice(names), f"key{next(self._scatters)}", tuple(fractions), value)
        self._try(asked, random.choice(self._sessions), random.randrange(1, 8))

    def _try(self, asked: ScatterRequest, session: dict[str, int], tries: int) -> None:
        router, random = self._router(), self._world.random
        is_over = False

        def done(code: str) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            self._count(f"scatter {code or 'done'}")
            if code in ("given up", "shard_unavailable") and tries > 1:
                self._world.after(random.random() * random.choice((0.5, 5.0)), self._try, asked, session, tries - 1)

        if router is not None:
            self._world.after(15.0, done, "given up")
            router.scatter(asked, session, done)

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

        def done(code: str) -> None:
            self._count(f"publish {code or 'done'}")
            if not code:
                self._checks.publish_acknowledged(content_id)

        router.publish(content, self._ranges, done)

    def move_aliases(self) -> None:
        """Move both aliases at once, or one of them, or remove it."""
        router, random = self._router(), self._world.random
        versions = [] if router is None else _versions(router)
        if router is None or self._is_moving or not versions:
            return
        targets = {alias: random.choice(versions) for alias in random.sample(ALIASES, random.randrange(1, 3))}
        change: Callable[[Catalogue], Change | None]
        if random.random() < 0.2:
            alias = min(targets)
            targets = {alias: ""}
            change = partial(remove_alias, alias=alias)
        else:
            change = partial(_moved, moves=[AliasMove(*each) for each in targets.items()])
        for alias, target in targets.items():
            self.aliases[alias].add(target)
        self._is_moving = True
        is_over = False
        before = len(self._checks.history)

        def done(code: str) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            self._is_moving = False
            self._count(f"aliases {code or 'done'}")
            if not code:
                self._check_moved(targets, before)

        self._world.after(20.0, done, "given up")  # the router may have crashed, or stand still
        router.change(change, done)

    def _check_moved(self, targets: dict[str, str], before: int) -> None:
        """Some catalogue since then has all of them: if none of these changes is to come late, it is the last one."""
        for catalogue in self._checks.history[before - 1 :]:
            named = {alias: "" if (one := catalogue.aliases.get(alias)) is None else one.reference for alias in targets}
            if named == targets:
                return
        raise Violation(f"aliases were acknowledged as {targets}, and never were so")

    def drain(self, nodes: list[str]) -> None:
        """Drain a machine, or take it back."""
        router, random = self._router(), self._world.random
        if router is None:
            return
        drained = sorted(self._checks.latest.drained)
        if drained and random.random() < 0.6:
            self._change(router, "undrain", partial(undrain, node=random.choice(drained)))
        else:
            self._change(router, "drain", partial(drain, node=random.choice(nodes)))

    def forget(self) -> None:
        """Remove the records of a machine that is not alive. It may come back, and registers itself anew."""
        router, latest = self._router(), self._checks.latest
        away = sorted(latest.nodes.keys() - latest.alive)
        if router is not None and away:
            self._change(router, "forget", partial(forget_node, node=self._world.random.choice(away)))

    def undrain(self, node: str) -> None:
        """Take a machine back."""
        router = self._router()
        if router is not None:
            self._change(router, "undrain", partial(undrain, node=node))

    def remove_version(self) -> None:
        """Remove a version."""
        router, random = self._router(), self._world.random
        versions = [] if router is None else _versions(router)
        if router is not None and versions:
            name, _, number = random.choice(versions).partition("@")
            self._checks.removals.add((name, int(number)))
            self._change(router, "remove", partial(remove_versions, reference=f"{name}@{number}"))

    def set_replicas(self) -> None:
        """Say how many replicas a table has."""
        router, random = self._router(), self._world.random
        if router is not None:
            table, replicas = random.choice(TABLES), random.choice((1, 2, 2, 3))
            self._change(router, "replicas", partial(set_replicas, name=table, replicas=replicas))

    def _change(self, router: Router, what: str, transition: Callable[[Catalogue], Change | None]) -> None:
        router.change(transition, lambda code: self._count(f"{what} {code or 'done'}"))


def _moved(catalogue: Catalogue, moves: Sequence[AliasMove]) -> Change | None:
    made = move_aliases(moves, catalogue.record_of, 1, ['"etag"' for _ in moves])
    return put_aliases(one for one, _ in made if one != catalogue.aliases.get(one.alias))


def _versions(router: Router) -> list[str]:
    return [f"{name}@{version.number}" for name, table in router.served.tables.items() for version in table.versions]
