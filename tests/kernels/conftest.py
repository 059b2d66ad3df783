from __future__ import annotations

import importlib
from typing import Any

import pytest

from app.kernels.gpu_interface import NoDevice

KERNELS = (
    "app.kernels.reference",
    "app.kernels.numba_cpu",
    "tests.kernels.cupy_kernel",
    "tests.kernels.emulated",
)


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest) -> Any:
    """Each kernel in turn; one that cannot run on this machine is skipped."""
    try:
        module = importlib.import_module(request.param)
        if request.param == "tests.kernels.emulated":
            module.library()
        elif request.param == "tests.kernels.cupy_kernel":
            module.open_device()
    except (ImportError, NoDevice) as absent:
        if "cannot be compiled" in str(absent):
            raise
        pytest.skip(str(absent))
    if request.param == "app.kernels.numba_cpu":
        request.getfixturevalue("compiled")
    return module
