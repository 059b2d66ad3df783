"""The README's Python does what it says."""

from __future__ import annotations

import re

import numpy as np
import pytest

from gathernd import GatherND
from tests.http.server import ROOT, Server


def test_the_python_of_the_readme_runs(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    table = np.arange(40.0).reshape(10, 4)
    names = {"table": table, "updates": np.ones((1, 4))}
    program = block.replace("http://127.0.0.1:8080", server.url)
    assert program != block
    exec(compile(program, "README.md", "exec"), names)
    assert capsys.readouterr().out == "indices[0] = 10 is outside [-10, 9] on data axis 0 (size 10) (0,) (-10, 9)\n"
    with GatherND(server.url) as service:
        assert service.get("table")[5].tolist() == (table[5] + 1).tolist()
        service.delete("table")
