"""Parity with modeci_mdf: its own gathernd and its execution engine, beside this project's client.

modeci-mdf brings pandas, scikit-learn and more, so it gets an environment of its own (tests/client/mdf), in the soak
run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.http.server import ROOT, Server

FOLDER = Path(__file__).parent / "mdf"
DTYPES = ("float32", "float64", "int64", "int32", "uint8", "bool", "int8")
"""Types that both have: onnxruntime, on which theirs rests, lacks some."""


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with modeci-mdf and what the client needs."""
    folder = tmp_path_factory.mktemp("mdf")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=120)
    made = folder / "bin" / "python"
    command = [str(made), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-input", "--require-hashes"]
    subprocess.run([*command, "-r", str(FOLDER / "requirements.lock")], check=True, timeout=900)
    return made


def some_calls(count: int) -> list[dict[str, Any]]:
    """Random calls; every fifth has an index that is out of bounds or tuples that are too long."""
    rng = np.random.default_rng(11)
    calls = []
    for number in range(count):
        rank = int(rng.integers(1, 5))
        shape = rng.integers(1, 5, rank)
        batch_dims = int(rng.integers(0, min(rank, 3)))
        depth = int(rng.integers(1, rank - batch_dims + 1))
        between = rng.integers(1, 4, int(rng.integers(0, 3)))
        index_shape = [*shape[:batch_dims], *between, depth]
        sizes = shape[batch_dims : batch_dims + depth]
        indices = rng.integers(-sizes, sizes, index_shape)
        if number % 10 == 5:
            indices.reshape(-1)[-1] = sizes[-1] + rng.integers(0, 3)
        elif number % 10 == 9:
            index_shape[-1] = rank - batch_dims + 1
            indices = np.zeros(index_shape, np.int64)
        dtype = DTYPES[number % len(DTYPES)]
        data = rng.integers(0, 2 if dtype == "bool" else 100, shape)
        calls.append(
            {
                "data": data.reshape(-1).tolist(),
                "dtype": dtype,
                "shape": shape.tolist(),
                "indices": indices.reshape(-1).tolist(),
                "index_dtype": ("int64", "int32")[number % 2],
                "index_shape": [int(size) for size in index_shape],
                "batch_dims": batch_dims,
            }
        )
    return calls


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_modeci_mdf_and_the_client_agree(python: Path, server: Server, tmp_path: Path, soak_scale: int) -> None:
    calls = some_calls(min(300, 3 * soak_scale))
    (tmp_path / "cases.json").write_text(json.dumps(calls))
    environment = {**os.environ, "GATHERND_URL": server.url, "PYTHONPATH": str(ROOT / "clients/python")}
    done = subprocess.run(
        [python, FOLDER / "parity.py", tmp_path / "cases.json"],
        env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout.splitlines()[-1])
    assert len(verdicts["cases"]) == len(calls)
    assert [(call, found) for call, found in zip(calls, verdicts["cases"], strict=True) if found] == []
    assert verdicts["model"] is None
