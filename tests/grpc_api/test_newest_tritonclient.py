"""Triton's newest client, unmodified, over HTTP and gRPC, in an environment of its own."""

from __future__ import annotations

import json
import subprocess

from tests.grpc_api.conftest import GrpcServer
from tests.needs import ROOT, in_environment


def test_the_newest_client_of_triton(grpc_server: GrpcServer) -> None:
    python = in_environment(".venv-clients/triton/bin/python", "clients")
    script = ROOT / "tests" / "oip" / "triton" / "script.py"
    command = [str(python), str(script), f"127.0.0.1:{grpc_server.http.port}", grpc_server.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["failed"] == []
    assert found["count"] == 3 * (14 + 2) - 2 + 3 * 14
