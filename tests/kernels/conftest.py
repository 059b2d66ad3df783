from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from app.kernels.device import NoDevice

KERNELS = ("app.kernels.numpy_cpu", "app.kernels.numba_cpu", "app.kernels.cupy_gpu", "tests.kernels.emulated")


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
        module = importlib.import_module(request.param)
        if request.param == "tests.kernels.emulated":
            module.library()
        elif request.param == "app.kernels.cupy_gpu":
            module.open_device()
    except (ImportError, NoDevice) as absent:
        pytest.skip(str(absent))
    if request.param == "app.kernels.numba_cpu":
        request.getfixturevalue("compiled")
    return module
