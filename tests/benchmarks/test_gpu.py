"""The benchmark of the GPU kernel where there is no GPU: it says so, and what needs none of it is right."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.kernels import numpy_cpu
from app.kernels.gpu_interface import NoDevice
from app.operators.gather_plan import GatherPlan
from benchmarks import gpu
from tests.http.server import ROOT
from tests.kernels import emulated, fake_cupy
from tests.kernels.fake_cupy import Machine


@pytest.fixture
def device() -> Iterator[Any]:
    try:
        emulated.library()
    except ImportError as absent:
        pytest.skip(str(absent))
    with fake_cupy.cupy_gpu(Machine()) as module:
        yield module.CupyDevice()


def has_gpu() -> bool:
    try:
        gpu.open_device()
    except NoDevice:
        return False
    return True


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)


def test_without_a_gpu_it_says_what_is_missing_and_fails() -> None:
    if has_gpu():
        pytest.skip("there is a GPU here")
    done = run("--only", "check")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "nothing is measured: " in done.stderr


def test_it_explains_itself() -> None:
    done = run("--help")
    assert done.returncode == 0
    for word in ("compute-sanitizer", "requirements-gpu.lock", "crossover", "torch.index_select"):
        assert word in done.stdout


def test_unknown_parts_are_refused() -> None:
    assert run("--only", "check,nothing").returncode == 2


def test_check_passes_a_kernel_that_is_right_and_finds_one_that_is_not(
    device: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu.check([device], 60, 1) == 0
    right = device.run

    def wrong(plan: GatherPlan, data: Any, indices: Any, out: Any) -> int:
        first: int = right(plan, data, indices, out)
        out[-1:] += np.ones(1, out.dtype)
        return first

    monkeypatch.setattr(device, "run", wrong)
    assert gpu.check([device], 60, 1) > 20
    assert "case 0 of seed 1 is wrong" in capsys.readouterr().out


def test_every_line_is_a_gather_and_flattened_indices_mean_the_same() -> None:
    source = random.Random(1)
    for _, plan in gpu.lines():
        assert plan.output_items > 0
    for _ in range(100):
        plan = gpu.random_plan(source)
        if not plan.data_items or plan.data_items * plan.item_size > 1 << 20 or plan.output_bytes > 1 << 22:
            continue
        data: NDArray[Any] = np.arange(plan.data_items).astype(gpu.CARRIERS[plan.item_size])
        indices = gpu.random_indices(plan, source)
        out = np.zeros(plan.output_items, data.dtype)
        assert numpy_cpu.run(plan, data, indices, out) == -1
        flat = gpu.flattened(plan, indices)
        assert (data.reshape(-1, plan.slice_items)[flat].reshape(-1) == out).all()


def test_crossover_measures_every_way_at_every_size(device: Any, compiled: Path) -> None:
    found = gpu.crossover(device, (4, 64), (1, 10), 1 << 16, 0.0)
    assert list(found) == ["rows of 4 B from 0 MiB", "rows of 64 B from 0 MiB"]
    for series in found.values():
        assert list(series) == ["CPU", "GPU inline", "GPU resident"]
        for points in series.values():
            assert [count for count, _ in points] == [1, 10]
            assert all(taken > 0 for _, taken in points)


def test_crossover_is_where_a_way_stays_ahead() -> None:
    cpu = [(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)]
    assert gpu.first_faster({"CPU": cpu, "GPU": [(1.0, 0.5), (10.0, 11.0), (100.0, 50.0)]}, "GPU") == "100 rows"
    assert gpu.first_faster({"CPU": cpu, "GPU": [(1.0, 5.0), (10.0, 9.0), (100.0, 50.0)]}, "GPU") == "10 rows"
    assert gpu.first_faster({"CPU": cpu, "GPU": [(1.0, 5.0), (10.0, 19.0), (100.0, 150.0)]}, "GPU") == "never"
