"""The GPU kernel as devices get it: compiled by NVRTC, which needs none."""

from __future__ import annotations

import ctypes
import re
from functools import cache

import pytest

from app.kernels.cupy_gpu import kernel_launch
from tests.deploy.test_supply_chain import entries
from tests.http.server import ROOT
from tests.kernels import emulated
from tests.kernels.compiler import Compiled, architectures, compile_for

NAMES = set(kernel_launch.ENTRIES)
USUAL = 80


@cache
def compiled(architecture: int) -> Compiled:
    return compile_for(f"sm_{architecture}")


# The last are about the device: which ones a later release of the compiler will not know.
NO_WARNINGS = ("ptxas info", "ptxas  ", "nvrtc: warning: Architectures prior to")


def check(architecture: int) -> None:
    made = compiled(architecture)
    messages = [line for line in made.log.splitlines() if not line.startswith(NO_WARNINGS)]
    assert [line for line in messages if line.strip()] == []
    assert set(re.findall(r"Compiling entry function '(\w+)'", made.log)) == NAMES
    assert made.cubin.startswith(b"\x7fELF")
    assert f".target sm_{architecture}" in made.ptx
    assert set(made.entries()) == NAMES


def test_it_compiles_without_a_warning_or_a_spill_and_many_threads_fit() -> None:
    check(USUAL)
    log = compiled(USUAL).log
    assert len(re.findall(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", log)) == len(NAMES)
    registers = re.findall(r"entry function '(\w+)'[\s\S]*?Used (\d+) registers", log)
    assert {name for name, _ in registers} == NAMES
    for name, number in registers:
        blocks = 4 if name.endswith("_wide") else 3  # on a multiprocessor
        assert int(number) * kernel_launch.BLOCK * blocks <= 65536, name


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_it_compiles_for_every_device_that_the_compiler_knows() -> None:
    for architecture in architectures():
        if architecture >= 70:  # older ones lack parameters that stay where they are
            check(architecture)
            compiled.cache_clear()


def test_the_argument_is_laid_out_as_the_source_has_it() -> None:
    try:
        library = emulated.library()
    except ImportError as absent:
        pytest.skip(str(absent))
    assert library.plan_bytes() == kernel_launch.PLAN_BYTES
    sizes = {int(size) for size in re.findall(r"\.param \.align 8 \.b8 \w+\[(\d+)\]", compiled(USUAL).ptx)}
    assert sizes == {kernel_launch.PLAN_BYTES}
    assert ctypes.sizeof(ctypes.c_void_p) == 8


def test_the_compiler_is_the_one_that_the_image_for_gpus_has() -> None:
    gpu = entries(ROOT / "requirements/gpu.lock")
    (ours,) = entries(ROOT / "tests" / "kernels" / "nvrtc" / "requirements.lock").items()
    assert gpu[ours[0]][1] == ours[1][1]
