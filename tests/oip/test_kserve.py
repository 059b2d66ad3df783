"""KServe's SDK and MLServer's `infer` command, unmodified, each in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.http.server import Server
from tests.needs import in_environment
from tests.oip.peers import interpreter

KSERVE = ".venv-clients/kserve/bin/python"
"""The environment with KServe's SDK that `make clients` makes, and `make test-all` before the tests."""


def test_the_rest_client_of_the_kserve_sdk(server: Server) -> None:
    python = in_environment(KSERVE, "clients")
    script = Path(__file__).parent / "kserve" / "script.py"
    ended = subprocess.run([python, script, server.url], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert [found[name] for name in ("live", "ready", "model", "nothing")] == [True, True, True, False]
    assert len(found["infers"]) == 13 * 2 * 3 - 3
    for one in found["infers"]:
        assert one["same"], one
        assert (one["datatype"], one["id"], one["model"]) == (one["case"][0], "7", "gathernd")
    assert found["plain"][0] == pytest.approx(3.4e38)
    assert found["far"].startswith("422 indices[0,0] = 3 is outside [-3, 2] on data axis 0 (size 3), ")
    assert found["missing"].startswith("404 no model is named 'nothing', ")


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flags", [[], ["--binary-data"]], ids=["json", "binary"])
def test_the_infer_command_of_mlserver(server: Server, tmp_path: Path, flags: list[str]) -> None:
    lines = []
    for number in range(5):
        inputs = [
            {"name": "data", "datatype": "FP32", "shape": [3, 2], "data": [number, 1, 2, 3, 4, 5]},
            {"name": "indices", "datatype": "INT64", "shape": [3, 1], "data": [2, 0, -1]},
        ]
        lines.append(json.dumps({"id": f"request-{number}", "inputs": inputs, "outputs": [{"name": "output"}]}))
    wrong = {"id": "wrong", "inputs": [{"name": "data", "datatype": "FP32", "shape": [1], "data": [1]}]}
    (tmp_path / "in.jsonl").write_text("\n".join([*lines, json.dumps(wrong)]))
    program = Path(interpreter("mlserver")).with_name("mlserver")
    command = [
        str(program), "infer", "--url", f"127.0.0.1:{server.port}", "-m", "gathernd", "-i", str(tmp_path / "in.jsonl"),
        "-o", str(tmp_path / "out.jsonl"), "-w", "2", "-r", "1", *flags,
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    answers = {}
    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        answer = json.loads(line)
        answers[answer["parameters"]["batch_index"]] = answer
    for number in range(5):
        (found,) = answers[number]["outputs"]
        assert found["data"] == [4.0, 5.0, float(number), 1.0, 4.0, 5.0], answers[number]
        assert found["shape"] == [3, 2]
        assert answers[number]["id"] == f"request-{number}"
        assert answers[number]["model_name"] == "gathernd"
    assert "the input 'indices' is missing" in answers[5]["error"]["msg"]
