"""The GPU kernel as devices get it: compiled by NVRTC, which needs none."""

from __future__ import annotations

import ctypes
import re
from functools import cache

import pytest

from app.kernels.cupy_gpu import kernel_launch
from tests.conftest import slow_but_for
from tests.deploy.test_supply_chain import entries
from tests.http.server import ROOT
from tests.kernels import emulated
from tests.kernels.compiler import Compiled, architectures, compile_for

NAMES = set(kernel_launch.ENTRIES)
USUAL = (80, 90)
VECTORS = {16: "v4.u32", 8: "u64", 4: "u32", 2: "u16", 1: "u8"}


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


@pytest.mark.parametrize("architecture", slow_but_for(USUAL[:1], USUAL[:1], USUAL))
def test_it_compiles_without_a_warning(architecture: int) -> None:
    check(architecture)


@pytest.mark.parametrize("architecture", slow_but_for(USUAL[:1], USUAL))
def test_no_entry_point_spills_registers_or_takes_so_many_that_few_threads_fit(architecture: int) -> None:
    log = compiled(architecture).log
    assert len(re.findall(r"\b0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", log)) == len(NAMES)
    registers = {
        name: int(number) for name, number in re.findall(r"entry function '(\w+)'[\s\S]*?Used (\d+) registers", log)
    }
    assert registers.keys() == NAMES
    for name, number in registers.items():
        blocks = 4 if name.endswith("_wide") else 3  # on a multiprocessor
        assert number * kernel_launch.BLOCK * blocks <= 65536, name


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_it_compiles_for_every_device_that_the_compiler_knows() -> None:
    for architecture in architectures():
        if architecture >= 70:  # older ones lack parameters that stay where they are
            check(architecture)
            compiled.cache_clear()


def test_entry_points_are_those_that_a_launch_can_name() -> None:
    assert set(compiled(90).entries()) == NAMES


@pytest.mark.parametrize("name", sorted(name for name in NAMES if not name.endswith("_wide")))
def test_whole_units_are_moved_four_at_once_and_nothing_is_divided(name: str) -> None:
    body = compiled(90).entries()[name]
    unit = int(name.split("_")[2])
    access = VECTORS[unit]
    loads = [at.start() for at in re.finditer(rf"\bld\.global\.nc\.{re.escape(access)}\b", body)]
    stores = [at.start() for at in re.finditer(rf"\bst\.global\.{re.escape(access)}\b", body)]
    assert len(stores) == kernel_launch.AT_ONCE
    assert len([at for at in loads if at > loads[-1] - 4000][-kernel_launch.AT_ONCE :]) == kernel_launch.AT_ONCE
    assert max(loads) < min(stores)
    check_body(body)


def check_body(body: str) -> None:
    assert not re.search(r"\b(div|rem)\.", body)
    assert not re.search(r"\b(ld|st)\.(local|shared)\b|\bbar\.", body)
    assert "atom.global.min.u64" in body


@pytest.mark.parametrize(
    ("bits", "unit", "packs", "store"),
    [(32, 8, 7, "u64"), (64, 8, 7, "u64"), (32, 4, 3, "v4.u32"), (64, 4, 4, "v4.u32"), (32, 2, 2, "v4.u32"),
     (64, 2, 2, "v4.u32"), (32, 1, 2, "v4.u32"), (64, 1, 2, "v4.u32")],
)  # fmt: skip
def test_wide_slices_are_written_in_whole_packs_several_at_once(bits: int, unit: int, packs: int, store: str) -> None:
    body = compiled(90).entries()[f"gather_{bits}_{unit}_wide"]
    stores = re.findall(rf"\bst\.global\.wb\.{store}\b", body)
    assert len(stores) == packs
    if unit == 8:  # without byte-wise ways beside: all are loaded before the first is stored
        last_load = body.rindex(f"ld.global.nc.{VECTORS[unit]}")
        assert last_load < body.index(f"st.global.wb.{store}")
    loads = len(re.findall(rf"\bld\.global\.nc\.{VECTORS[unit]}\b", body))
    assert loads >= packs * max(1, 16 // unit if store == "v4.u32" else 1)
    check_body(body)


def test_a_warning_would_be_seen() -> None:
    assert "warning" in compile_for("sm_90", b"__global__ void divides(int* at) { *at = 1 / 0; }").log


def test_the_argument_is_laid_out_as_the_source_has_it() -> None:
    try:
        library = emulated.library()
    except ImportError as absent:
        pytest.skip(str(absent))
    assert library.plan_bytes() == kernel_launch.PLAN_BYTES
    sizes = {int(size) for size in re.findall(r"\.param \.align 8 \.b8 \w+\[(\d+)\]", compiled(90).ptx)}
    assert sizes == {kernel_launch.PLAN_BYTES}
    assert ctypes.sizeof(ctypes.c_void_p) == 8


def test_the_compiler_is_the_one_that_the_image_for_gpus_has() -> None:
    gpu = entries(ROOT / "requirements/gpu.lock")
    (ours,) = entries(ROOT / "tests" / "kernels" / "nvrtc" / "requirements.lock").items()
    assert gpu[ours[0]][1] == ours[1][1]
