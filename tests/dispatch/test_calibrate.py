from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from app.dispatch import calibrate
from app.dispatch.calibrate import calibrated, measure
from app.dispatch.cost import TYPICAL, Coefficients, GpuCoefficients
from app.kernels import numpy_cpu


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Measuring is replaced; the list has an entry for each time it was done."""
    times: list[int] = []

    def stand_in(kernel: Any, threads: int, gpu: GpuCoefficients | None = None) -> Coefficients:
        times.append(threads)
        return Coefficients(**{**asdict(TYPICAL), "call_s": float(len(times)), "gpu": gpu})

    monkeypatch.setattr(calibrate, "measure", stand_in)
    return times


def test_a_measurement_is_positive_and_takes_a_moment() -> None:
    started = time.perf_counter()
    found = measure(numpy_cpu, 2)
    assert time.perf_counter() - started < 5  # under a second on an idle machine
    assert all(getattr(found, field.name) > 0 for field in fields(found) if field.name != "gpu")
    assert found.far_slice_s >= found.near_slice_s
    assert found.far_byte_s >= found.near_byte_s
    assert 1.25 <= found.split_gain <= 2


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
    monkeypatch.setattr(calibrate, "_cpu_model", lambda: "another")
    calibrated(numpy_cpu, tmp_path, threads=2)
    assert len(measured) == 3


def test_the_figures_of_a_gpu_are_kept_too(tmp_path: Path, measured: list[int]) -> None:
    card = GpuCoefficients(1e-5, 1e-10, 1e-10, 1e-11, 1e-12)
    assert calibrated(numpy_cpu, tmp_path, gpu=lambda: card).gpu == card
    assert calibrated(numpy_cpu, tmp_path, gpu=lambda: card).gpu == card
    assert calibrated(numpy_cpu, tmp_path).gpu is None
    assert len(measured) == 2


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"call_s": 1.0}', "\x00", "nan", "infinite", "negative", "text", "more", "gpu"]
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
