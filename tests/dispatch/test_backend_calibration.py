from __future__ import annotations

import json
import logging
import os
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import kernels
from app.dispatch import backend_calibration
from app.dispatch.backend_calibration import calibrated, measure, with_min_gain
from app.dispatch.backend_cost_model import TYPICAL, Coefficients
from app.kernels import numpy_cpu


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Measuring is replaced; the list has an entry for each time it was done."""
    times: list[int] = []

    def stand_in(kernel: Any, threads: int) -> Coefficients:
        times.append(threads)
        return replace(TYPICAL, call_s=float(len(times)))

    monkeypatch.setattr(backend_calibration, "measure", stand_in)
    return times


def test_a_measurement_is_whole() -> None:
    found = measure(numpy_cpu, 2)
    assert found.gpu is None
    assert min(astuple(found)[:-1]) > 0
    assert found.near_slice_s <= found.far_slice_s
    assert found.near_byte_s <= found.far_byte_s
    assert 1 <= found.gain <= 2


def test_one_thread_gains_nothing() -> None:
    found = measure(numpy_cpu, 1)
    assert found.gain == 1


def test_a_busy_moment_does_not_end_all_splitting() -> None:
    assert 2 < with_min_gain(replace(TYPICAL, gain=1.0), 4).gain < 3
    assert with_min_gain(replace(TYPICAL, gain=3.9), 4).gain == 3.9
    assert with_min_gain(replace(TYPICAL, gain=1.0), 1).gain == 1


def test_a_second_start_reads_what_the_first_measured(tmp_path: Path, measured: list[int]) -> None:
    first = calibrated(numpy_cpu, tmp_path / "new", threads=2)
    assert calibrated(numpy_cpu, tmp_path / "new", threads=2) == first
    assert measured == [2]
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".json"]


def test_refresh_measures_again_and_keeps_that(tmp_path: Path, measured: list[int]) -> None:
    calibrated(numpy_cpu, tmp_path, threads=2)
    assert calibrated(numpy_cpu, tmp_path, threads=2, refresh=True).call_s == 2
    assert calibrated(numpy_cpu, tmp_path, threads=2).call_s == 2


def test_another_machine_does_not_use_this_ones_figures(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated(numpy_cpu, tmp_path, threads=2)
    calibrated(numpy_cpu, tmp_path, threads=3)
    monkeypatch.setattr(backend_calibration, "cpu_model", lambda: "another")
    calibrated(numpy_cpu, tmp_path, threads=2)
    assert len(measured) == 3


def test_another_kernel_does_not_use_this_ones_figures(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "kernels"
    sources.mkdir()
    monkeypatch.setattr(kernels, "__file__", str(sources / "__init__.py"))
    for text in ("one", "one", "another"):
        (sources / "gather.cu").write_text(text)
        calibrated(numpy_cpu, tmp_path / "cache", threads=2)
    assert len(measured) == 2


def test_another_version_with_other_coefficients_has_a_file_of_its_own(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated(numpy_cpu, tmp_path, threads=2)
    monkeypatch.setattr(backend_calibration, "fields", lambda of: fields(of)[1:])
    calibrated(numpy_cpu, tmp_path, threads=2)
    assert len(measured) == len([*tmp_path.iterdir()]) == 2


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", '{"call_s": 1.0}', "\x00"),
        *("nan", "infinite", "negative", "text", "more", "gpu", "list", "less", "free"),
    ],
)
def test_a_damaged_file_is_measured_again(tmp_path: Path, measured: list[int], content: str) -> None:
    calibrated(numpy_cpu, tmp_path, threads=2)
    (path,) = tmp_path.iterdir()
    whole = json.loads(path.read_text())
    spoiled = {
        "nan": {**whole, "call_s": float("nan")},
        "infinite": {**whole, "call_s": float("inf")},
        "negative": {**whole, "call_s": -1.0},
        "text": {**whole, "call_s": "1"},
        "more": {**whole, "other": 1.0},
        "gpu": {**whole, "gpu": {"launch_s": 1.0}},
        "list": {**whole, "near_slice_s": [1.0]},
        "less": {name: value for name, value in whole.items() if name != "gain"},
        "free": {**whole, "far_slice_s": 0.0},
    }
    path.write_text(json.dumps(spoiled[content]) if content in spoiled else content)
    assert calibrated(numpy_cpu, tmp_path, threads=2).call_s == 2
    assert calibrated(numpy_cpu, tmp_path, threads=2).call_s == 2
    assert len(measured) == 2


def test_a_folder_that_cannot_be_written_is_logged_and_does_no_harm(
    tmp_path: Path, measured: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "gathernd"):
        assert calibrated(numpy_cpu, tmp_path / "file", threads=2).call_s == 1
    assert "could not be kept" in caplog.text


class TunedKernel:
    """NumPy's kernel with settings, under which long rows that are not asked for ahead take so many times as long."""

    name = "tuned"
    splits = False

    def __init__(self, unasked: float) -> None:
        self.unasked = unasked
        self.now = 0.0
        self.settings = (0, 0)

    def tune(self, wake_from: int, ahead_bytes: int) -> None:
        self.settings = (wake_from, ahead_bytes)

    def run(self, plan: Any, *arrays: Any, **further: Any) -> int:
        long = plan.slice_items * plan.item_size >= 512 and self.settings[1] < 512
        self.now += 0.002 * (self.unasked if long else 1.0)
        return -1


@pytest.mark.parametrize(("unasked", "ahead"), [(1.5, True), (0.5, False)])
def test_long_rows_are_asked_for_ahead_where_that_was_measured_to_be_faster(
    unasked: float, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = TunedKernel(unasked)
    monkeypatch.setattr(backend_calibration, "perf_counter", lambda: kernel.now)
    found = backend_calibration._measure_unasked_row(kernel, np.zeros(1 << 20, np.uint8), np.random.default_rng(1))
    assert (found > 1) is ahead
    backend_calibration._tune(kernel, replace(TYPICAL, unasked_row=found))
    assert (kernel.settings[1] > 1 << 16) is ahead
    assert kernel.settings[1] >= 256


def test_the_longer_helpers_take_to_wake_the_more_work_wakes_them(tmp_path: Path, measured: list[int]) -> None:
    kernel = TunedKernel(1.0)
    found = []
    for wakeup_s in (60e-6, 120e-6):
        backend_calibration._tune(kernel, replace(TYPICAL, wakeup_s=wakeup_s))
        found.append(kernel.settings[0])
    assert found[1] == pytest.approx(2 * found[0], rel=0.01)
    calibrated(kernel, tmp_path)
    first, kernel.settings = kernel.settings, (0, 0)
    calibrated(kernel, tmp_path)  # from the file
    assert kernel.settings == first != (0, 0)
    assert measured == [len(os.sched_getaffinity(0))]
