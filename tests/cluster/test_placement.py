"""The coordinator as an actor of Ray, in a network namespace of its own: Ray takes no address but loopback there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec

import pytest

from tests.needs import ROOT

NAMESPACE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.skipif(not _has_namespaces(), reason="a network namespace cannot be made here")
def test_the_coordinator_goes_on_from_its_records_when_it_is_killed() -> None:
    folder = tempfile.mkdtemp(prefix="ray")  # a short path: the names of Ray's sockets hold it
    script = 'ip link set lo up && exec "$0" -m tests.cluster.ray_in_namespace'
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*NAMESPACE, "bash", "-c", script, sys.executable],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    shutil.rmtree(folder, ignore_errors=True)
    assert done.stdout.endswith("all of it holds\n"), done.stdout[-3000:] + done.stderr[-3000:]
