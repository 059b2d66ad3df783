"""What goes wrong: processes that are killed, stopped and cut off, never all in-sync replicas of a range at once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from app.cluster.catalogue.records import Catalogue
from app.errors import GatherError
from tests.cluster.chaos.processes import MEMBERS, RECONCILERS, ROUTERS, SHARDS, Cluster
from tests.cluster.waiting import until
from tests.parity.items import Rng, choose

LONG_S = 20.0
"""Longer than the lease of a shard and of a read."""


@dataclass
class Faults:
    """Does one thing after the other. `deaths` says when the primaries of which ranges died."""

    cluster: Cluster
    rng: Rng
    say: Callable[[str], None]
    deaths: list[tuple[float, str]] = field(default_factory=list)
    """Times, and the tensors of the ranges."""

    def run(self, seconds: float) -> None:
        """Each kind once, in any order, and again until so many seconds have passed."""
        end = time.monotonic() + seconds
        kinds = self._kinds()
        while time.monotonic() < end:
            for name in self.rng.permutation(sorted(kinds)):
                self.say(str(name))
                kinds[str(name)]()
                self._calm()
                if time.monotonic() > end:
                    break

    def _kinds(self) -> Mapping[str, Callable[[], None]]:
        return {
            "a shard is killed": self.kill,
            "a shard is stopped": self.stop,
            "a shard is stopped for longer than its lease": lambda: self.stop(LONG_S),
            "a shard is cut off from the other shards": lambda: self.cut(SHARDS),
            "a shard is cut off from one other, one way": self.silence,
            "a shard is cut off from etcd": lambda: self.cut(MEMBERS, LONG_S),
            "a shard is cut off from all but the routers": lambda: self.cut((*MEMBERS, *SHARDS, *RECONCILERS), LONG_S),
            "a shard is cut off from all": lambda: self.cut((*MEMBERS, *SHARDS, *RECONCILERS, *ROUTERS)),
            "a router is cut off from etcd": self.cut_router,
            "a member of etcd is killed": self.kill_member,
            "a member of etcd is stopped": self.stop_member,
            "two members of etcd are stopped for a moment": self.stop_members,
            "a reconciler is killed": self.kill_reconciler,
            "a reconciler is stopped": self.stop_reconciler,
            "two shards die, one after the other": self.kill_two,
            "a shard is killed while a reconciler is": self.kill_with_reconciler,
        }

    def kill(self) -> None:
        """Kill a shard and begin it again."""
        victim = self._victim(())
        self._die(victim)
        self._wait(0.5, 6)
        self.cluster.start(victim)

    def kill_two(self) -> None:
        """Kill two shards, the second as soon as the ranges of the first have others in sync."""
        first = self._victim(())
        self._die(first)
        self._wait(0, 4)
        second = self._victim((first,))
        self._die(second)
        self._wait(0.5, 6)
        self.cluster.start(*self.rng.permutation([first, second]).tolist())

    def kill_with_reconciler(self) -> None:
        """Kill a shard, and a reconciler beside it."""
        victim, reconciler = self._victim(()), choose(self.rng, RECONCILERS)
        self.cluster.processes[reconciler].send(signal.SIGKILL)
        self._die(victim)
        self._wait(0.5, 6)
        self.cluster.start(victim, reconciler)

    def stop(self, seconds: float | None = None) -> None:
        """Stop a shard and let it go on: it does not know that time has passed."""
        self._stopped(self._victim(()), seconds)

    def cut(self, others: Collection[str], seconds: float | None = None) -> None:
        """Cut a shard off from others."""
        victim = self._victim(())
        self.cluster.network.cut(victim, others)
        self._wait(*((2, 8) if seconds is None else (seconds, seconds)))
        self.cluster.network.heal(victim)

    def silence(self) -> None:
        """What a shard sends to one other is lost, in one direction."""
        victim = self._victim(())
        self.cluster.network.silence(victim, choose(self.rng, [one for one in SHARDS if one != victim]))
        self._wait(3, 8)
        self.cluster.network.heal(victim)

    def cut_router(self) -> None:
        """A router goes on with an old map."""
        router = choose(self.rng, ROUTERS)
        self.cluster.network.cut(router, MEMBERS)
        self._wait(4, 8)
        self.cluster.network.heal(router)

    def kill_member(self) -> None:
        """Kill a member of etcd."""
        member = choose(self.rng, MEMBERS)
        self.cluster.processes[member].send(signal.SIGKILL)
        self._wait(2, 6)
        self.cluster.start(member)

    def stop_member(self) -> None:
        """Stop a member of etcd."""
        self._stopped(choose(self.rng, MEMBERS), None)

    def stop_members(self) -> None:
        """Stop two: etcd answers nothing, for less than the lease of a read."""
        two = self.rng.permutation(MEMBERS)[:2].tolist()
        for member in two:
            self.cluster.processes[member].send(signal.SIGSTOP)
        self._wait(3, 5)
        for member in two:
            self.cluster.processes[member].send(signal.SIGCONT)

    def kill_reconciler(self) -> None:
        """Kill a reconciler."""
        reconciler = choose(self.rng, RECONCILERS)
        self.cluster.processes[reconciler].send(signal.SIGKILL)
        self._wait(1, 3)
        self.cluster.start(reconciler)

    def stop_reconciler(self) -> None:
        """Stop a reconciler for longer than its lease: it goes on with what it knew."""
        self._stopped(choose(self.rng, RECONCILERS), LONG_S)

    def _stopped(self, name: str, seconds: float | None) -> None:
        process = self.cluster.processes[name]
        process.send(signal.SIGSTOP)
        self._wait(*((2, 8) if seconds is None else (seconds, seconds)))
        process.send(signal.SIGCONT)

    def _die(self, victim: str) -> None:
        led = [tensor for tensor, record in self._catalogue().ranges.items() if record.primary == victim]
        self.cluster.processes[victim].send(signal.SIGKILL)
        self.deaths += [(time.monotonic(), tensor) for tensor in led]

    def _victim(self, gone: Collection[str]) -> str:
        """A shard that every range can spare: another one that is in sync is left. A primary if there is one."""
        found: list[str] = []

        def spared() -> bool:
            ranges = self._catalogue().ranges.values()
            found[:] = [
                one for one in SHARDS if one not in gone and all(set(each.in_sync) - {one, *gone} for each in ranges)
            ]
            return bool(found)

        until(spared, "a shard can be spared")
        leads = [one for one in found if any(each.primary == one for each in self._catalogue().ranges.values())]
        return str(choose(self.rng, leads or found))

    def _catalogue(self) -> Catalogue:
        """The newest catalogue, as soon as etcd has one."""
        end = time.monotonic() + 60
        while True:
            try:
                return self.cluster.catalogue.refresh()
            except GatherError:
                assert time.monotonic() < end, "etcd answers"
                time.sleep(0.2)

    def _calm(self) -> None:
        """Wait until every range can lose a replica again, and sometimes until all of them are in sync."""
        least = 3 if self.rng.random() < 0.3 else 2
        until(
            lambda: all(len(each.in_sync) >= least for each in self._catalogue().ranges.values()),
            f"every range has {least} replicas in sync",
        )

    def _wait(self, least: float, most: float) -> None:
        time.sleep(float(self.rng.uniform(least, most)))
