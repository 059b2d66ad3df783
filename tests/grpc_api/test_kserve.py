"""KServe's SDK over HTTP and gRPC, unmodified, in an environment of its own."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.grpc_api.conftest import GrpcServer
from tests.needs import ROOT, in_environment


def test_the_clients_of_the_kserve_sdk(grpc_server: GrpcServer) -> None:
    python = in_environment(".venv-clients/kserve/bin/python", "clients")
    script = ROOT / "tests" / "oip" / "kserve" / "script.py"
    command = [str(python), str(script), grpc_server.http.url, grpc_server.address]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    http = found["http"]
    assert [http[name] for name in ("live", "ready", "model", "nothing")] == [True, True, True, False]
    assert len(http["infers"]) == 13 * 2 * 3 - 3
    for one in http["infers"]:
        assert one["same"], one
        assert (one["datatype"], one["id"], one["model"]) == (one["case"][0], "7", "gathernd")
    assert http["plain"][0] == pytest.approx(3.4e38)
    assert http["far"].startswith("422 indices[0,0] = 3 is outside [-3, 2] on data axis 0 (size 3), ")
    assert http["missing"].startswith("404 no model is named 'nothing', ")
    grpc = found["grpc"]
    assert [grpc[name] for name in ("live", "ready", "model")] == [True, True, True]
    assert [(one["same"], one["id"]) for one in grpc["infers"]] == [(True, "7")] * 2
    assert "is outside [-3, 2]" in grpc["far"]
    assert "no model is named 'nothing'" in grpc["missing"]
