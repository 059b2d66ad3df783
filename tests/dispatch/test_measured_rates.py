from __future__ import annotations

import json
import logging
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from app.dispatch import measured_rates
from app.dispatch.choose_backend import TYPICAL, Rates
from app.dispatch.measured_rates import machine_rates, measure
from app.kernels import reference


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Measuring is replaced; the list has an entry for each time it was done."""
    times: list[int] = []

    def stand_in(kernel: Any) -> Rates:
        times.append(1)
        return replace(TYPICAL, byte_s=float(len(times)))

    monkeypatch.setattr(measured_rates, "measure", stand_in)
    return times


def test_a_measurement_is_whole() -> None:
    found = measure(reference)
    assert min(astuple(found)) > 0
    assert found.near_item_s <= found.far_item_s


def test_a_second_start_reads_what_the_first_measured(tmp_path: Path, measured: list[int]) -> None:
    first = machine_rates(reference, tmp_path / "new")
    assert machine_rates(reference, tmp_path / "new") == first
    assert len(measured) == 1
    assert [path.suffix for path in (tmp_path / "new").iterdir()] == [".json"]


def test_another_machine_does_not_use_this_ones_figures(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine_rates(reference, tmp_path)
    monkeypatch.setattr(measured_rates, "cpu_model", lambda: "another")
    machine_rates(reference, tmp_path)
    assert len(measured) == 2


@pytest.mark.parametrize("change", [None, {"byte_s": float("nan")}, {"byte_s": -1.0}, {"byte_s": "1"}, {"more": 1.0}])
def test_a_damaged_file_is_measured_again(tmp_path: Path, measured: list[int], change: dict[str, Any] | None) -> None:
    machine_rates(reference, tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text("{" if change is None else json.dumps(json.loads(path.read_text()) | change))
    assert machine_rates(reference, tmp_path).byte_s == 2
    assert machine_rates(reference, tmp_path).byte_s == 2
    assert len(measured) == 2


def test_a_folder_that_cannot_be_written_is_logged_and_does_no_harm(
    tmp_path: Path, measured: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "gathernd"):
        assert machine_rates(reference, tmp_path / "file").byte_s == 1
    assert "could not be kept" in caplog.text
