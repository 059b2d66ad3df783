"""The clients of a simulated cluster: they look up, publish, move aliases, remove versions, and drain machines."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Literal

from app.cluster.coordinator.messages import Change, Publish
from tests.cluster.simulation.checks import Checks, Violation
from tests.cluster.simulation.router import LOOKUP_DEADLINE, Router
from tests.cluster.simulation.truth import Content
from tests.cluster.simulation.world import World

TABLES = ("items", "users")
ROW_BYTES = 4
GIVEN_UP_AFTER = 2 * LOOKUP_DEADLINE
"""So long does a client wait for the answer to a change."""


class Clients:
    """All clients; `routers` gives those that live. Aliases and machines are changed by one client each, in turn."""

    def __init__(self, world: World, checks: Checks, routers: Callable[[], list[Router]], url_share: float) -> None:
        self._world = world
        self._checks = checks
        self._routers = routers
        self._url_share = url_share
        self._ids = count(1)
        self._busy: set[str] = set()
        self.aliases: dict[str, set[str]] = {}
        """What each alias may name when all is over, "" for nothing."""
        self.draining: dict[str, set[bool]] = {}
        """Whether each machine may be drained when all is over."""
        self.outcomes: dict[str, int] = {}
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
        tables = router.newest.current.tables
        reference = random.choice(TABLES)
        if reference in tables and random.random() < 0.3:
            reference = f"{reference}@{random.choice(tables[reference].versions).number}"
        elif self.aliases and random.random() < 0.3:
            reference = random.choice(sorted(self.aliases))
        since = router.newest.current.generation
        fractions = [random.random() for _ in range(random.randrange(1, 9))]

        def done(outcome: str, rows: tuple[tuple[str, int], ...]) -> None:
            self._count(outcome)
            if outcome == "done":
                self._checks.answered(reference, since, fractions, rows)
            elif outcome == "tensor_not_found":
                self._checks.not_found(reference, since)
            elif self.must_answer:
                raise Violation(f"a lookup of {reference} failed ({outcome}), and one shard at most was at fault")

        router.lookup(reference, fractions, done)

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

        def done(outcome: str, number: int) -> None:
            self._count(f"publish {outcome}")
            if outcome == "published":
                self._checks.publish_acknowledged(content_id, number)

        asked = Publish(
            content_id,
            content.table,
            "float32",
            (rows,),
            ROW_BYTES,
            content.keep,
            router.newest.current.generation,
            url,
        )
        router.publish(asked, done)

    def move_alias(self) -> None:
        """Make or move an alias, or remove it."""
        router, random = self._router(), self._world.random
        alias = random.choice(("best", "test"))
        if router is None or alias in self._busy:
            return
        versions = [
            f"{name}@{version.number}"
            for name, table in router.newest.current.tables.items()
            for version in table.versions
        ]
        remove = random.random() < 0.2
        if not remove and not versions:
            return
        target = "" if remove else random.choice(versions)
        may_be = self.aliases.setdefault(alias, {""})
        self._change(router, "remove_alias" if remove else "put_alias", alias, target, may_be, target, {target})

    def drain(self, nodes: list[str]) -> None:
        """Drain a machine, or take it back."""
        router, random = self._router(), self._world.random
        node = random.choice(nodes)
        if router is None or node in self._busy:
            return
        may_be = self.draining.setdefault(node, {False})
        drain = may_be == {False}
        self._change(router, "drain" if drain else "undrain", node, "", may_be, drain, {drain})

    def remove_version(self) -> None:
        """Remove a version."""
        router, random = self._router(), self._world.random
        tables = router.newest.current.tables if router is not None else {}
        if router is None or not tables:
            return
        name = random.choice(sorted(tables))
        number = random.choice(tables[name].versions).number
        self._checks.removals.add((name, number))
        asked = Change(f"change{next(self._ids)}", "remove", name, str(number), router.newest.current.generation)
        router.change(asked, lambda outcome: self._count(f"remove {outcome}"))

    def _change(
        self,
        router: Router,
        what: Literal["put_alias", "remove_alias", "drain", "undrain"],
        subject: str,
        value: str,
        may_be: set[Any],
        attempted: object,
        after: set[Any],
    ) -> None:
        self._busy.add(subject)
        may_be.add(attempted)
        is_over = False

        def done(outcome: str) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            self._busy.discard(subject)
            self._count(f"{what} {outcome}")
            if outcome == "done":
                may_be.clear()
                may_be.update(after)

        self._world.after(GIVEN_UP_AFTER, done, "given up")  # the router may have crashed, or stand still
        router.change(Change(f"change{next(self._ids)}", what, subject, value, router.newest.current.generation), done)

    def undrain(self, node: str) -> None:
        """Take a machine back."""
        router = self._router()
        if router is not None and node not in self._busy:
            self._change(router, "undrain", node, "", self.draining[node], False, {False})
