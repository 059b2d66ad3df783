"""python -m tests.cluster.chaos FOLDER CACHE SECONDS [SEED]: in a network namespace of its own, see `network.HUB`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import httpx
import numpy as np

from tests.cluster.chaos import outcome
from tests.cluster.chaos.faults import Faults
from tests.cluster.chaos.load import ROWS, TABLE, WIDTH, Load
from tests.cluster.chaos.network import log_of
from tests.cluster.chaos.processes import ROUTERS, SHARDS, Cluster
from tests.cluster.running import put


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)  # noqa: T201


def main(folder: Path, cache: Path, seconds: float, seed: int) -> None:
    """Raises AssertionError if something is not as it should be."""
    say(f"seed {seed}")
    cluster = Cluster(folder, cache)
    try:
        with httpx.Client(
            base_url=cluster.url(ROUTERS[0]), headers=cluster.headers, trust_env=False, timeout=60
        ) as client:
            put(client, TABLE, np.zeros((ROWS, WIDTH), np.int32))
        load = Load([cluster.url(router) for router in ROUTERS], cluster.headers, seed)
        begun = time.monotonic()
        time.sleep(2)
        faults = Faults(cluster, np.random.default_rng(seed), say)
        faults.run(seconds)
        time.sleep(2)
        load.end()
        taken = outcome.refusals(load.told, _content_id(cluster), faults.deaths)
        outcome.summary(load.told, time.monotonic() - begun, taken, say)
        outcome.check(cluster, load.told)
    finally:
        cluster.end()
    for name in (*SHARDS, *ROUTERS):
        log = log_of(folder, name).read_text(errors="replace")
        assert "Traceback" not in log, f"{name}: {log[log.index('Traceback') :][:3000]}"
    say("all of it holds")


def _content_id(cluster: Cluster) -> str:
    return cluster.catalogue.refresh().tables[TABLE].versions[-1].content_id


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
