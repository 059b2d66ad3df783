"""Sharded writes while all that can fail fails: see `tests.cluster.chaos`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.chaos.network import HUB
from tests.cluster.test_ray_launcher import NAMESPACE
from tests.needs import ROOT, skip_without

SECONDS = 600


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_acknowledged_adds_are_made_once_whatever_dies_stops_or_is_cut_off(warmed: Path, tmp_path: Path) -> None:
    skip_without(etcd="etcd-server", unshare="util-linux", nsenter="util-linux", ip="iproute2")
    if subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a network namespace cannot be made here")
    seed = random.SystemRandom().getrandbits(32)
    arguments = [str(tmp_path), str(warmed), str(SECONDS), str(seed)]
    done = subprocess.run(
        [*NAMESPACE, "sh", "-ec", HUB, sys.executable, "-m", "tests.cluster.chaos", *arguments],
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=1400, check=False,
    )  # fmt: skip
    sys.stdout.write(done.stdout)
    assert done.stdout.endswith("all of it holds\n"), done.stdout[-6000:] + done.stderr[-6000:]
