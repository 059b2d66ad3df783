"""`buf curl`, a gRPC client for the command line written in Go, unmodified: it shares no code with grpc's own clients.

The npm package stands in tests/clients/typescript/package-lock.json.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format

from app.formats.grpc import messages as grpc_messages
from app.security import api_keys
from tests.for_each import for_each
from tests.grpc_api.conftest import GrpcServer, StartGrpc
from tests.grpc_api.messages import FIELDS, output, pb, request
from tests.needs import in_environment, skip_without
from tests.oip.bodies import NUMPY, same
from tests.oip.test_infer import DATA, INDICES

BUF = ".venv-clients/npm/node_modules/.bin/buf"
SCHEMA = Path(grpc_messages.__file__).parent
SERVICE = "inference.GRPCInferenceService"


def curl(address: str, method: str, *messages: dict[str, Any], options: Sequence[str] = ()) -> Any:
    """The exit status of one call, and the JSON that it printed, of an error or of each message."""
    service, _, name = method.rpartition("/")
    command = [
        *(str(in_environment(BUF, "clients")), "curl", "--protocol", "grpc", "--reflect=false"),
        *("--schema", str(SCHEMA), "--data", "@-", *options),
        f"http://{address}/{service or SERVICE}/{name}",
    ]
    sent = "\n".join(map(json.dumps, messages or ({},)))
    done = subprocess.run(command, input=sent, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        return done.returncode, json.loads(done.stderr)
    decoder, text, found = json.JSONDecoder(), done.stdout.strip(), []
    while text:
        one, end = decoder.raw_decode(text)
        found.append(one)
        text = text[end:].lstrip()
    return 0, found


@pytest.fixture(autouse=True)
def needs() -> None:
    skip_without(node="nodejs", npm="npm")
    in_environment(BUF, "clients")


def test_health_metadata_configuration_and_statistics(grpc_server: GrpcServer) -> None:
    at = grpc_server.address
    assert curl(at, "ServerLive") == (0, [{"live": True}])
    assert curl(at, "ServerReady") == (0, [{"ready": True}])
    assert curl(at, "grpc.health.v1.Health/Check", {"service": SERVICE}) == (0, [{"status": "SERVING"}])
    assert curl(at, "ModelReady", {"name": "gathernd"}) == (0, [{"ready": True}])
    assert curl(at, "ServerMetadata")[1][0]["name"] == "gathernd"
    assert [one["name"] for one in curl(at, "ModelMetadata", {"name": "gathernd"})[1][0]["inputs"]] == [
        "data",
        "indices",
    ]
    assert curl(at, "ModelConfig", {"name": "gathernd"})[1][0]["config"]["name"] == "gathernd"
    assert curl(at, "ModelStatistics", {"name": "gathernd"})[1][0]["modelStats"][0]["name"] == "gathernd"


@for_each("datatype", NUMPY)
def test_infer_of_every_datatype(grpc_server: GrpcServer, datatype: str) -> None:
    arrays = {"data": (datatype, DATA[datatype]), "indices": ("INT64", INDICES)}
    for typed in (False, True) if datatype in FIELDS else (False,):
        asked = request(arrays, typed=typed, id="ü7")
        status, (found,) = curl(grpc_server.address, "ModelInfer", json_format.MessageToDict(asked))
        answer = json_format.ParseDict(found, pb.ModelInferResponse())
        assert (status, answer.id, answer.outputs[0].datatype) == (0, "ü7", datatype)
        assert same(output(answer, NUMPY[datatype]), DATA[datatype][[1, 0, 0]])


def test_errors_and_streams(grpc_server: GrpcServer) -> None:
    at = grpc_server.address
    right = {"data": ("FP32", DATA["FP32"]), "indices": ("INT64", INDICES)}
    wrong = {"data": ("FP32", DATA["FP32"]), "indices": ("INT64", np.array([[9]]))}
    messages = [
        json_format.MessageToDict(request(arrays, id=str(number)))
        for number, arrays in enumerate([right, wrong, right])
    ]
    _, error = curl(at, "ModelInfer", messages[1])
    assert error["code"] == "out_of_range"
    assert "is outside [-3, 2]" in error["message"]
    assert curl(at, "ModelInfer", {"model_name": "nothing"})[1]["code"] == "not_found"
    status, answers = curl(at, "ModelStreamInfer", *messages)
    assert (status, [one["inferResponse"]["id"] for one in answers]) == (0, ["0", "1", "2"])
    assert ["errorMessage" in one for one in answers] == [False, True, False]


def test_keys(start_grpc: StartGrpc, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    key = api_keys.add(keys, "one", ["gather"])
    with start_grpc("--api-keys-file", str(keys)) as server:
        assert curl(server.address, "ModelInfer", {"model_name": "gathernd"})[1]["code"] == "unauthenticated"
        options = ("--header", f"authorization: Bearer {key}")
        assert curl(server.address, "ModelInfer", {"model_name": "nothing"}, options=options)[1]["code"] == "not_found"
