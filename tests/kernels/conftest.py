from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

KERNELS = ("numpy_cpu", "numba_cpu", "cupy_gpu")


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Numba's kernel, compiled into a cache of this test run."""
    from app.kernels import numba_cpu

    folder = tmp_path_factory.mktemp("compiled")
    if not numba_cpu.ready():
        numba_cpu.configure(folder)
    numba_cpu.warm()
    return folder


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Any:
    """Each kernel in turn; one that cannot run on this machine is skipped."""
    try:
        module = importlib.import_module(f"app.kernels.{request.param}")
    except ImportError as absent:
        pytest.skip(f"{request.param} is not here: {absent}")
    if request.param == "numba_cpu":
        request.getfixturevalue("compiled")
    return module
