"""A cluster whose shards are killed and stopped, under random operations by key: every answer is the model's."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from time import sleep

import pytest

from tests.cluster.clustered import Clustered, clustered
from tests.cluster.replicated import stopped
from tests.cluster.waiting import until
from tests.conftest import SOAK, samples
from tests.grpc_api.conftest import port_of
from tests.http.conftest import Start, start
from tests.keys.lookup_forms import Caller
from tests.keys.random_operations import Walker, walk

__all__ = ["start"]

THREADS = 4
LONG_S = 20.0
"""Longer than the lease of a shard and of a read."""


def harming(cluster: Clustered) -> Callable[[int], None]:
    """Kill a shard that every range can spare and begin it again, or stop it: it does not know that time has passed."""
    some = random.Random(1)

    def harm(turn: int) -> None:
        spared: list[str] = []

        def is_spared() -> bool:
            ranges = cluster.catalogue.ranges.values()
            spared[:] = [node for node in cluster.shards if all({*one.in_sync} - {node} for one in ranges)]
            return bool(spared)

        until(is_spared, "a shard can be spared")
        node = some.choice(spared)
        if turn % 3 == 1:
            with stopped(cluster, node):
                sleep(LONG_S if turn % 6 == 4 else 3.0)
            return
        cluster.kill(node)
        sleep(3 * some.random())
        cluster.begin(node)

    return harm


@pytest.mark.slow
@pytest.mark.timeout(0 if SOAK else 600)
def test_random_operations_by_key_match_a_model(start: Start, tmp_path: Path, warmed: Path) -> None:
    seed, count = random.SystemRandom().getrandbits(32) if SOAK else 41, max(samples(200), 45)
    with (
        clustered(start, warmed, tmp_path, flags=("--grpc-port", "0")) as cluster,
        ExitStack() as stack,
    ):
        ports = cluster.router.port, port_of(cluster.router)
        callers = [stack.enter_context(closing(Caller(*ports))) for _ in range(THREADS)]
        walkers = [Walker(caller, number, seed, at_once=False) for number, caller in enumerate(callers)]
        counts = walk(walkers, count, max(count // 40, 25), harming(cluster))
    sys.stdout.write(f"seed {seed}: {dict(counts)}\n")
    assert counts["kills"] > 0
