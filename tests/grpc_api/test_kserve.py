"""KServe's SDK over gRPC, unmodified, in an environment of its own."""

from __future__ import annotations

import json
import subprocess

from tests.grpc_api.conftest import GrpcServer
from tests.needs import ROOT, in_environment
from tests.oip.test_kserve import KSERVE


def test_the_grpc_client_of_the_kserve_sdk(grpc_server: GrpcServer) -> None:
    python = in_environment(KSERVE, "clients")
    script = ROOT / "tests" / "oip" / "kserve" / "grpc_script.py"
    command = [str(python), str(script), grpc_server.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert [found[name] for name in ("live", "ready", "model")] == [True, True, True]
    assert [(one["same"], one["id"]) for one in found["infers"]] == [(True, "7")] * 2
    assert "is outside [-3, 2]" in found["far"]
    assert "no model is named 'nothing'" in found["missing"]
