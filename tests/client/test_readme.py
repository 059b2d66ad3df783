"""The README's Python does what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gathernd import GatherND
from tests.http.server import ROOT, Server

CLIENT_README = ROOT / "clients/python/README.md"


def blocks(language: str) -> list[str]:
    found: list[str] = re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return found


def test_the_python_of_the_readme_runs(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    block = blocks("python")[0]
    table = np.arange(40.0).reshape(10, 4)
    names = {"table": table, "updates": np.ones((1, 4))}
    program = block.replace("http://127.0.0.1:8080", server.url)
    assert program != block
    exec(compile(program, "README.md", "exec"), names)
    assert capsys.readouterr().out == "indices[0] = 10 is outside [-10, 9] on data axis 0 (size 10) (0,) (-10, 9)\n"
    with GatherND(server.url) as service:
        assert service.get("table")[5].tolist() == (table[5] + 1).tolist()
        service.delete("table")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_of_a_million_rows_runs(server: Server, tmp_path: Path, soak_scale: int) -> None:
    (shell,) = (block for block in blocks("bash") if "table.npy" in block)
    (program,) = (block for block in blocks("python") if "table.npy" in block)
    program = program.replace("http://127.0.0.1:8080", server.url)
    assert "1_000_000" in shell
    assert server.url in program
    if soak_scale == 1:
        shell = shell.replace("1_000_000", "20_000")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"} | {
        "GATHERND_URL": server.url,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for command in (["bash", "-euo", "pipefail", "-c", shell], [sys.executable, "-c", program]):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500, check=False
        )
        assert done.returncode == 0, done.stderr
        # A thread that fails says so here and does not end the program.
        assert done.stderr == ""
    counts = re.fullmatch(r"lookups: {'old': ([0-9]+), 'new': ([0-9]+)}\n", done.stdout)
    assert counts is not None, done.stdout
    assert int(counts[2]) >= 100


def test_the_python_of_the_clients_own_readme_runs(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", CLIENT_README.read_text(), re.MULTILINE | re.DOTALL)
    program = block.replace("http://127.0.0.1:8080", server.url)
    assert program != block
    exec(compile(program, "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == [
        "[0. 3.]",
        "[[20. 21. 22. 23.]",
        " [28. 29. 30. 31.]]",
        "indices[0] = 10 is outside [-10, 9] on data axis 0 (size 10)",
    ]
