"""A cluster on Ray, in a network namespace of its own: Ray takes no address but loopback there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.conftest import TEST_ALL
from tests.needs import ROOT, in_environment, skip_without

NAMESPACE = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def _has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param("ray_in_namespace", marks=pytest.mark.soak),
        "ray_chain",
        pytest.param("ray_one_replica", marks=pytest.mark.soak),
    ],
)
def test_a_cluster_on_ray(program: str) -> None:
    """ray_in_namespace: the coordinator goes on from its records when it is killed; ray_chain: all that users do;
    ray_one_replica: what a killed shard without another replica means, and for how long.
    """
    skip_without(**{"redis-server": "redis-server"})
    python = in_environment(".venv-cluster/bin/python", "cluster")
    if not TEST_ALL:
        pytest.skip("runs under make test-all")  # here, so that what is missing is named before
    if not _has_namespaces():
        pytest.skip("a network namespace cannot be made here")
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # a short path: the names of Ray's sockets hold it
    script = 'ip link set lo up && exec "$0" "$@"'
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    environment |= {"RAY_TMPDIR": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*NAMESPACE, "bash", "-c", script, str(python), "-m", f"tests.cluster.{program}", str(folder)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.stdout.endswith("all of it holds\n"), done.stdout[-6000:] + done.stderr[-6000:]
    shutil.rmtree(folder, ignore_errors=True)
