"""MLServer's `infer` command, unmodified, in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.http.server import Server
from tests.oip.peers import interpreter


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
