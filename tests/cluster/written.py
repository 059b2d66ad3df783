"""A cluster that takes scatters beside one machine that takes the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import httpx

from app.cluster.catalogue.records import RangeRecord
from tests.cluster.clustered import Clustered
from tests.cluster.running import BothTransport
from tests.cluster.shard_nodes import KEY
from tests.cluster.waiting import until
from tests.http.server import Server
from tests.parity.items import Rng, choose

TURN = 40
"""Requests to one router before the next has its turn."""
KEPT = httpx.Limits(keepalive_expiry=None)
"""A connection is a session: what it has written it reads."""
_SUM = re.compile(r'"[A-Za-z0-9._-]+-([0-9]+)"')


class WrittenTransport(BothTransport):
    """Sends each request to one of several routers, by turns, and to one machine.

    Another connection may see what was written a little later, so before a turn ends `settle` waits until all replicas
    have applied what is committed. A scatter goes out with the `key`, if there is one, and is kept in `keyed`.
    """

    def __init__(self, routers: Sequence[Server], whole: Server, settle: Callable[[], None]) -> None:
        super().__init__(routers[0], whole)
        self.router.close()
        self._routers = [router.client(limits=KEPT) for router in routers]
        for client in self._routers:
            client.event_hooks = {"response": []}
        self.router = self._routers[0]
        self._settle = settle
        self._written = False
        self.key: str | None = None
        self.keyed: list[httpx.Request] = []
        self.scattered = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.compared % TURN == 0:
            self.settle()
            self.router = self._routers[self.compared // TURN % len(self._routers)]
        scatters = request.url.path.endswith("/scatter")
        if scatters and self.key is not None:
            request.headers["idempotency-key"] = self.key
        answer = super().handle_request(request)
        if scatters and answer.is_success:
            self.scattered += 1
            self._written = True
            if "idempotency-key" in request.headers:
                self.keyed.append(request)
        return answer

    def settle(self) -> None:
        """Wait until what was written is the same on all connections."""
        if self._written:
            self._settle()
            self._written = False

    def again(self, rng: Rng) -> httpx.Request:
        """A scatter that was answered before, with its key."""
        old: httpx.Request = choose(rng, self.keyed)
        headers = {name: value for name, value in old.headers.items() if name != "host"}
        return httpx.Request(old.method, old.url, content=old.content, headers=headers)

    def close(self) -> None:
        super().close()
        for client in self._routers:
            client.close()


def settled(cluster: Clustered) -> None:
    """Wait until every in-sync replica of every range has applied all that is committed.

    Ranges may move meanwhile, so the catalogue is read again for each look.
    """
    done: set[tuple[str, int]] = set()

    def is_settled() -> bool:
        left = {(tensor, record.epoch): record for tensor, record in cluster.catalogue.ranges.items()}
        for known, record in left.items():
            if known not in done and _is_settled(cluster, known[0], record):
                done.add(known)
        return left.keys() <= done

    until(is_settled, "the replicas have applied what is committed")


def _is_settled(cluster: Clustered, tensor: str, record: RangeRecord) -> bool:
    states = set()
    for node in record.in_sync:
        headers = {"authorization": f"Bearer {KEY}"}
        answer = cluster.shards[node].shared_client().get(f"/shard/ranges/{tensor}", headers=headers)
        if not answer.is_success:
            return False
        states |= {answer.json()["applied"], answer.json()["last"]}
    return len(states) == 1


def sequence_of(etag: str) -> int:
    """How many changes an ETag counts."""
    found = _SUM.fullmatch(etag)
    assert found is not None, etag
    return int(found[1])
