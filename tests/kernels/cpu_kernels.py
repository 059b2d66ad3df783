"""The kernels of the CPU as fixtures: each in turn, both at once, the compiled one with helpers that always come."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest

from app.kernels import Kernel
from app.kernels.numba_cpu.chunked_job import shared_team
from app.kernels.numba_cpu.thresholds import WAKE_FROM

NAMES = ("app.kernels.numba_cpu", "app.kernels.reference")


@pytest.fixture(params=NAMES)
def kernel(request: pytest.FixtureRequest, compiled: None) -> Kernel:
    """Each kernel in turn."""
    found: Kernel = import_module(request.param)
    return found


@pytest.fixture(scope="module")
def every_kernel(compiled: None) -> list[Kernel]:
    """Both kernels."""
    return [import_module(name) for name in NAMES]


@pytest.fixture
def always_shared(compiled: None) -> Iterator[None]:
    """Wake helpers that sleep, however little there is to do."""
    shared_team().settings["wake_from"] = 0
    yield
    shared_team().settings["wake_from"] = WAKE_FROM
