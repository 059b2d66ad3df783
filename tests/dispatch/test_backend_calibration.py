from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from app import kernels
from app.dispatch import backend_calibration
from app.dispatch.backend_calibration import calibrated, measure, with_min_gain
from app.dispatch.backend_cost_model import DATA_BYTES, DEPTHS, TYPICAL, WIDTHS, Coefficients, GpuCoefficients
from app.kernels import numpy_cpu


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Measuring is replaced; the list has an entry for each time it was done."""
    times: list[int] = []

    def stand_in(kernel: Any, threads: int, gpu: GpuCoefficients | None = None) -> Coefficients:
        times.append(threads)
        return Coefficients(**{**asdict(TYPICAL), "call_s": float(len(times)), "gpu": gpu})

    monkeypatch.setattr(backend_calibration, "measure", stand_in)
    return times


def test_a_measurement_is_whole_and_takes_a_moment() -> None:
    started = time.perf_counter()
    found = measure(numpy_cpu, 2)
    assert time.perf_counter() - started < 10  # under a second on an idle machine with the compiled kernel
    assert [*map(len, found.slice_s)] == [len(WIDTHS)] * len(DATA_BYTES)
    assert len(found.tuple_s) == len(DEPTHS)
    assert list(found.tuple_s) == sorted(found.tuple_s)
    assert found.tuple_s[0] == 0
    single = (
        found.call_s,
        found.hand_off_s,
        found.wakeup_s,
        found.output_byte_s,
        found.odd_slice_s,
        found.index_move_s,
        found.output_move_s,
    )
    assert min(*single, *(price for row in found.slice_s for price in row)) > 0
    assert 1 <= found.item_gain <= 2
    assert 1 <= found.row_gain <= 2
    assert 1 <= found.output_gain <= 2


def test_one_thread_gains_nothing() -> None:
    found = measure(numpy_cpu, 1)
    assert found.item_gain == found.row_gain == found.output_gain == 1


def test_a_busy_moment_does_not_end_all_splitting() -> None:
    kept = with_min_gain(replace(TYPICAL, item_gain=1.0, row_gain=1.1), 4)
    assert 2 < kept.item_gain < 3
    assert kept.row_gain == 1.1
    assert with_min_gain(replace(TYPICAL, item_gain=3.9), 4).item_gain == 3.9
    assert with_min_gain(replace(TYPICAL, item_gain=1.0), 1).item_gain == 1


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
    monkeypatch.setattr(backend_calibration, "_cpu_model", lambda: "another")
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


def test_the_figures_of_a_gpu_are_kept_too(tmp_path: Path, measured: list[int]) -> None:
    card = GpuCoefficients(1e-5, 1e-10, 1e-10, 1e-11)
    assert calibrated(numpy_cpu, tmp_path, gpu=lambda: card).gpu == card
    assert calibrated(numpy_cpu, tmp_path, gpu=lambda: card).gpu == card
    assert calibrated(numpy_cpu, tmp_path).gpu is None
    assert len(measured) == 2


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", '{"call_s": 1.0}', "\x00", "nan", "infinite", "negative", "text", "more", "gpu"),
        *("row", "column", "ragged", "flat", "depth", "free"),
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
        "row": {**whole, "slice_s": whole["slice_s"][1:]},
        "column": {**whole, "slice_s": [row[1:] for row in whole["slice_s"]]},
        "ragged": {**whole, "slice_s": [whole["slice_s"][0][1:], *whole["slice_s"][1:]]},
        "flat": {**whole, "slice_s": 1.0},
        "depth": {**whole, "tuple_s": whole["tuple_s"][1:]},
        "free": {**whole, "slice_s": [[0.0] * len(row) for row in whole["slice_s"]]},
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
