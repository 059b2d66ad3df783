"""Run schedules again: python -m tests.cluster.simulation SEED... prints what each fails with, "" if all holds."""

from __future__ import annotations

import sys

from tests.cluster.test_simulation import failure

for seed in sys.argv[1:]:
    print(f"seed {seed}: {failure(int(seed))}", flush=True)  # noqa: T201
