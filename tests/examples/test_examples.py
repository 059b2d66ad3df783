"""Every example runs against a service, and says what it did."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import SOAK
from tests.http.server import Server, serving
from tests.needs import ROOT, in_environment

EXAMPLES = ROOT / "clients/python/examples"
NOTEBOOK = EXAMPLES / "what_a_gather_does.ipynb"
SAYS = {
    "live_table.py": r"200 changes, \d+ lookups in the meantime, none of which saw half a change\n",
    "pandas_features.py": r"3 users of 1000, spent [\d.]+ on average\n",
    "pytorch_embedding.py": r"5 rows of 10000 served, changed and served again\n",
    "pytorch_training.py": r"40 steps: loss [\d.]+ to 0\.\d+, as with torch\.nn\.Embedding\n",
    "triton_client.py": r"rows 5 and 7 of items: \[\[20.0, 21.0, 22.0, 23.0\], \[28.0, 29.0, 30.0, 31.0\]\]\n",
}


@pytest.fixture(scope="module")
def server(warmed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(warmed, tmp_path_factory.mktemp("examples")) as started:
        yield started


def python_of(example: str) -> str:
    """The interpreter that has what the example needs; torch is far too large for any environment but that of soak."""
    if example.startswith("pytorch_") and importlib.util.find_spec("torch") is None:
        if not SOAK:
            pytest.skip("runs under make soak, or where there is the Python package torch")
        return str(in_environment(".venv-torch/bin/python", "torch"))
    return str(in_environment(".venv-docs/bin/python", "docs")) if example == "pandas_features.py" else sys.executable


def run(server: Server, *command: str) -> str:
    """What a program of ours prints, which must end without an error and say nothing on stderr."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("GATHERND_", "PYTHON"))}
    variables |= {"GATHERND_URL": server.url, "PYTHONPATH": str(ROOT / "clients/python")}
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(
        command, cwd=EXAMPLES, env=variables, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("example", SAYS)
def test_example_runs(example: str, server: Server) -> None:
    assert re.fullmatch(SAYS[example], run(server, python_of(example), example))


@pytest.mark.slow
def test_notebook_runs_and_has_the_outputs_that_it_shows(server: Server, tmp_path: Path) -> None:
    python = str(in_environment(".venv-docs/bin/python", "docs"))
    run(server, python, str(ROOT / "tests/examples/run_notebook.py"), str(NOTEBOOK), str(tmp_path / "run.ipynb"))
    shown, made = (json.loads(path.read_text())["cells"] for path in (NOTEBOOK, tmp_path / "run.ipynb"))
    assert made == shown
