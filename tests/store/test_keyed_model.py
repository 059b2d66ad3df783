"""A service of two workers, some of which are killed, under random operations by key: every answer is the model's."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from app.store.maintenance.check_store import check
from tests.cluster.waiting import until
from tests.conftest import SOAK, samples
from tests.free_port import free_port
from tests.keys.lookup_forms import Caller
from tests.keys.random_operations import Walker, walk
from tests.store.killed_service import KilledService

THREADS = 4


def killing(service: KilledService) -> Callable[[int], None]:
    """Kill a worker, or, each tenth time, the parent or all processes, which are then started again."""
    some = random.Random(1)

    def kill(number: int) -> None:
        if number % 10 == 8:
            service.kill()
            service.start()
        elif number % 10 == 9:
            service.kill_parent()
            service.start()
        else:
            until(lambda: service.kill_worker(some), "there is a worker")

    return kill


@pytest.mark.timeout(0 if SOAK else 300)
def test_random_operations_by_key_match_a_model(tmp_path: Path, warmed: Path) -> None:
    seed, count = random.SystemRandom().getrandbits(32) if SOAK else 41, samples(2000)
    grpc_port = free_port()
    service = KilledService(tmp_path, warmed, "--grpc-port", str(grpc_port))
    with ExitStack() as stack:
        service.start()
        stack.callback(service.end)
        callers = [stack.enter_context(closing(Caller(service.port, grpc_port))) for _ in range(THREADS)]
        walkers = [Walker(caller, number, seed, at_once=True) for number, caller in enumerate(callers)]
        counts = walk(walkers, count, max(count // 100, 50), killing(service))
        listed = json.loads(callers[0].sure("GET", "/tensors?limit=1000").content)["tensors"]
        assert {one["name"] for one in listed} == {table.name for walker in walkers for table in walker.tables}
        service.stop()
    sys.stdout.write(f"seed {seed}: {dict(counts)}\n")
    assert not [one for one in check(tmp_path / "store") if one.level == "damage"]
    assert "Traceback" not in service.log.read_text(errors="replace")
    assert counts["kills"] > 0
