"""Scatters to the ranges of a running cluster, sent to shards as routers send them."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import numpy as np

from app.cluster.catalogue import ranges
from app.cluster.catalogue.records import RangeRecord
from app.cluster.range_scatter import RangeScatter, RangeScattered, ScatterOrder
from app.tensors.dtypes import DTYPES
from tests.cluster.clustered import Clustered
from tests.cluster.running import put
from tests.cluster.shard_nodes import KEY
from tests.cluster.waiting import until
from tests.parity.items import Array, name_of

HEADERS = {"authorization": f"Bearer {KEY}"}


@dataclass
class Replicated:
    """One table of a cluster, whose ranges take scatters."""

    cluster: Clustered
    name: str
    dtype: str = "int64"

    @staticmethod
    def made(cluster: Clustered, name: str, table: Array) -> Replicated:
        """Upload a table, and open its ranges."""
        put(cluster.router.shared_client(), name, table)
        number = cluster.table(name).versions[-1].number
        cluster.client.transact_all(lambda at: ranges.open_ranges(at, name, number))
        return Replicated(cluster, name, name_of(table))

    @property
    def tensors(self) -> list[str]:
        """The names under which shards have its ranges."""
        version = self.cluster.table(self.name).versions[-1]
        return [version.tensor(segment) for segment in version.segments]

    def record(self, tensor: str) -> RangeRecord:
        return self.cluster.catalogue.ranges[tensor]

    def ask(self, node: str, method: str, path: str, **options: Any) -> httpx.Response:
        """Ask a shard."""
        return (
            self.cluster.shards[node]
            .shared_client()
            .request(method, path, headers={**HEADERS, **options.pop("headers", {})}, **options)
        )

    def send(
        self, node: str, tensor: str, rows: list[int], updates: Any, key: str, reduction: Any = "add", **members: Any
    ) -> httpx.Response:
        """Send a scatter of whole rows to a shard."""
        dtype = DTYPES[self.dtype]
        items = np.ascontiguousarray(updates, dtype.numpy).reshape(len(rows), -1)
        epoch = members.pop("epoch", self.record(tensor).epoch)
        order = ScatterOrder(epoch, dtype, len(rows), items.shape[1], reduction, key, key, **members)
        body = b"".join(RangeScatter(order, np.array(rows, np.int64), items.reshape(-1)).pieces())
        return self.ask(node, "POST", f"/shard/ranges/{tensor}/scatter", content=body)

    def scatter(self, tensor: str, rows: list[int], updates: Any, key: str, **members: Any) -> RangeScattered:
        """Send a scatter to the primary until it is acknowledged."""
        found: list[RangeScattered] = []

        def sent() -> bool:
            try:
                answer = self.send(self.record(tensor).primary, tensor, rows, updates, key, **members)
            except (httpx.HTTPError, AssertionError):
                return False
            if answer.status_code == 200:
                found.append(RangeScattered.from_json(answer.content))
            else:
                assert answer.status_code in (412, 503), answer.text
            return bool(found)

        until(sent, f"the scatter {key} to {tensor} is acknowledged")
        return found[0]

    def rows(self, node: str, tensor: str, least: int | None = None) -> Array | str:
        """All rows of a range as a shard serves them, or the code of its refusal."""
        headers = {"accept": "application/octet-stream"} | (
            {} if least is None else {"x-gathernd-sequence": str(least)}
        )
        answer = self.ask(node, "GET", f"/tensors/{tensor}/content", headers=headers)
        if answer.status_code != 200:
            return str(answer.json()["code"])
        return np.frombuffer(answer.content, DTYPES[self.dtype].numpy)

    def refusal(self, node: str, tensor: str, least: int | None = None) -> str:
        """The code with which a shard refuses to read a range, "" if it serves the rows."""
        found = self.rows(node, tensor, least)
        return found if isinstance(found, str) else ""

    def first_row(self, node: str, tensor: str, least: int) -> list[int]:
        """The first two items, at the sequence `least` or later."""
        found: list[Array | str] = []

        def served() -> bool:
            found[:] = [self.rows(node, tensor, least)]
            return not isinstance(found[0], str)

        until(served, f"{node} knows that it is in sync with {tensor}, and is at {least}", 20)
        return [int(item) for item in found[0][:2]]

    def until_in_sync(self, tensor: str, *nodes: str) -> None:
        """Wait until these shards are in sync, and no others."""
        until(lambda: set(self.record(tensor).in_sync) == set(nodes), f"{nodes} are in sync with {tensor}")


KEYS = map("k{}".format, itertools.count())
"""Keys that no scatter has had."""


@contextmanager
def stopped(cluster: Clustered, node: str) -> Iterator[None]:
    """A shard whose processes are stopped for a while."""
    group = os.getpgid(cluster.shards[node].process.pid)
    os.killpg(group, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(group, signal.SIGCONT)


def kill(table: Replicated, tensor: str, node: str) -> None:
    """Kill a shard, and give its range to another one, as the reconciler does once it knows."""
    table.cluster.kill(node)
    table.cluster.client.transact_all(lambda at: ranges.fail_over(at, frozenset({node})))
    until(lambda: table.record(tensor).primary != node, f"{node} is not the primary any more")
