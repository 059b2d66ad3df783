"""The GPU kernel on a CPU: the very source, launched with the very arguments, one thread of the grid after another.

What it cannot show is what only a device has: its memory model, its speed, its compiler. `tests/kernels/test_gather_cu`
compiles the source for devices.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.kernels.check_arrays import check_arrays
from app.kernels.cupy_gpu import kernel_launch
from app.operators.gather_plan import GatherPlan

name = "emulated"
splits = False
HERE = Path(__file__).parent
MULTIPROCESSORS = 2
# A stop of the process where C++ leaves open what happens, an access that is not aligned among it.
CHECKS = ("-fsanitize=undefined,float-divide-by-zero", "-fsanitize-undefined-trap-on-error")
COMPILER = shutil.which("g++")


BUILT = "EMULATED_GATHER"
"""The variable by which processes that a test starts find what it has built."""


@cache
def library() -> ctypes.CDLL:
    """The kernel as a library. Raises ImportError where there is no compiler."""
    if BUILT in os.environ:
        return _load(os.environ[BUILT])
    if COMPILER is None:
        raise ImportError("needs the Debian package g++")
    folder = tempfile.mkdtemp(prefix="gathernd-emulated-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    built = f"{folder}/gather.so"
    command = [COMPILER, "-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"]
    command += [*CHECKS, "-shared", "-fPIC", "-o", built, str(HERE / "emulated.cpp")]
    done = subprocess.run(
        [*command, f"-I{HERE}", f"-I{kernel_launch.SOURCE.parent}"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    os.environ[BUILT] = built
    return _load(built)


def _load(built: str) -> ctypes.CDLL:
    found = ctypes.CDLL(built)
    found.plan_bytes.restype = ctypes.c_size_t
    found.run_grid.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint64]
    found.run_grid.restype = None
    return found


def launch(entry: str, grid: tuple[int, int], argument: bytes) -> None:
    """What a device does with a launch."""
    address = ctypes.cast(getattr(library(), entry), ctypes.c_void_p)
    library().run_grid(address, argument, *grid, len(argument) + sum(argument[:64]))


def run(plan: GatherPlan, data: NDArray[Any], indices: NDArray[Any], out: NDArray[Any], threads: int = 1) -> int:
    """See `app.kernels.Kernel.run`; indices travel as `cupy_gpu` has them travel."""
    check_arrays(plan, data, indices, out)
    size = 8 if indices.dtype.itemsize == 8 or indices.dtype == np.uint32 else 4
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(2**63 - 1))
    indices = indices.astype(f"i{size}", copy=False)
    first = np.array([kernel_launch.NOTHING], np.uint64)
    addresses = (data.ctypes.data, indices.ctypes.data, out.ctypes.data, first.ctypes.data)
    prepared = kernel_launch.launch(plan, indices.itemsize, addresses, MULTIPROCESSORS)
    if prepared is not None:
        assert prepared.grid[0] * prepared.grid[1] % 1000003
        launch(*prepared)
    return -1 if first[0] == kernel_launch.NOTHING else int(first[0])
