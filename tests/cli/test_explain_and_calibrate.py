"""`gathernd calibrate` and `gathernd explain`, with figures that are given, so that what they say is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from app.api.schemas.answers import BackwardAnswer, GatherAnswer
from app.cli import offline_service
from app.dispatch import measured_rates
from app.dispatch.choose_backend import TYPICAL, Rates
from app.kernels import reference
from app.operators.registry import OPERATORS
from gathernd_cli.command_line import app
from tests.for_each import for_each

LOOKUP = ["explain", "--data-shape", "200000,64", "--indices-shape", "64,1"]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """No measurement and no compilation; the list has an entry for each time it was measured."""
    times: list[int] = []

    def stand_in(kernel: Any) -> Rates:
        times.append(1)
        return TYPICAL

    monkeypatch.setattr(measured_rates, "measure", stand_in)
    monkeypatch.setattr(reference, "splits", True)
    monkeypatch.setattr(offline_service, "keep_freed_memory", lambda size: True)
    monkeypatch.setenv("GATHERND_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("GATHERND_KERNEL", "numpy")
    monkeypatch.setenv("GATHERND_THREADS", "2")
    monkeypatch.setenv("GATHERND_DEVICE", "cpu")
    return times


def run(*arguments: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == code, (done.output, done.exception)
    return done.output


def test_calibrate_measures_each_time_and_explain_takes_what_it_kept(measured: list[int]) -> None:
    run("calibrate")
    run("calibrate")
    run(*LOOKUP)
    assert len(measured) == 2


def test_calibrate_shows_rates_and_thresholds(measured: list[int]) -> None:
    shown = run("calibrate")
    assert "hand-off to a thread and back" in shown
    assert "30.0 µs" in shown
    (row,) = [line for line in shown.splitlines() if "loop of far data" in line]
    assert [cell.strip() for cell in row.split("│")[2:4]] == ["60,000", "2,000,000"]
    assert "table of 200,000 rows): event loop from 1 rows, split over threads from" in shown
    assert "GPU: this service uses no GPU" in shown


def test_explain_says_output_plan_size_thresholds_and_choice(measured: list[int]) -> None:
    shown = run(*LOOKUP)
    assert "output: float32 [64, 64], 16,384 bytes" in shown
    assert "1 x 64 tuples over axes of [200000], slices of 64 x 4 bytes" in shown
    assert "size: 64 items, 16,384 bytes" in shown
    (row,) = [line for line in shown.splitlines() if "event loop" in line and "threshold" in line]
    assert "items, 2,000,000 bytes" in row
    assert "choice: event loop, on the CPU" in shown
    assert "were not checked" in shown


def test_explain_in_json_is_what_the_service_answers(measured: list[int]) -> None:
    found = json.loads(run(*LOOKUP, "--json"))
    GatherAnswer.model_validate(found)
    assert found["output"] == {"dtype": "float32", "shape": [64, 64]}
    assert found["explanation"]["output_bytes"] == 16_384
    assert found["explanation"]["choice"]["route"] == "loop"


@for_each("op", OPERATORS)
def test_explain_has_every_operator(measured: list[int], op: str) -> None:
    """And what it says is what the operator's row says."""
    further = {"gather_block_quantized": ["--data-dtype", "uint8", "--input", "scales=float16:5,1"]}
    asked = ["explain", "--op", op, "--data-shape", "5,6", "--indices-shape", "5,1", *further.get(op, ())]
    found = json.loads(run(*asked, "--json"))
    assert found["explanation"]["operator"] == op
    assert found["dialect"] == OPERATORS[op].signature.default_dialect


GRADIENT = ["explain", "--op", "gathernd_backward", "--data-shape", "200000,64", "--indices-shape", "256,1"]


def test_explain_knows_gradients(measured: list[int]) -> None:
    found = json.loads(run(*GRADIENT, "--json"))
    BackwardAnswer.model_validate(found)
    assert found["grad_data"] == {"dtype": "float32", "shape": [200_000, 64]}
    assert found["explanation"]["operator"] == "gathernd_backward"
    assert found["explanation"]["grad_output"] == {"dtype": "float32", "shape": [256, 64], "bytes": 65_536}
    assert "output: float32 [200000, 64], 51,200,000 bytes" in run(*GRADIENT)
    sparse = json.loads(run(*GRADIENT, "--sparse", "--json"))
    assert "grad_data" not in sparse
    assert sparse["explanation"]["output_bytes"] == 256 * (8 + 8 + 256), "a place and an index too"
    assert "the slices that were gathered, at most, 69,632 bytes" in run(*GRADIENT, "--sparse")
    along = ["explain", "--op", "gather_backward", "--data-shape", "8,90,3", "--indices-shape", "5,7", "--axis", "-2"]
    assert json.loads(run(*along, "--json"))["explanation"]["grad_output"]["shape"] == [8, 5, 7, 3]
    batched = ["--dialect", "openvino-8", "--batch-dims", "1"]
    shape = json.loads(run(*along, "--indices-shape", "8,7", *batched, "--json"))["explanation"]["grad_output"]["shape"]
    assert shape == [8, 7, 3]


BAGS = ["explain", "--op", "lookup", "--feature", "1000,64:256", "--feature", "200000,32:27392:256"]


@for_each(
    ("arguments", "text"),
    [
        (["--op", "lookup"], "takes --feature"),
        ([*BAGS[1:], "--data-shape", "5"], "no --data-shape"),
        ([*BAGS[1:], "--device", "gpu"], "run on the CPU"),
        ([*BAGS[1:], "--axis", "1"], "rows along axis 0"),
        (["--op", "lookup", "--feature", "5"], "not of the form TABLE:INDICES"),
        (["--op", "lookup", "--feature", "5:6:x"], "not of the form TABLE:INDICES"),
        (["--op", "lookup", "--feature", "x:6"], "not a shape"),
        ([*BAGS[1:], "--pooling", "none"], "--pooling"),
        ([*LOOKUP[1:], "--feature", "5:6"], "--feature belongs to --op lookup"),
        ([*LOOKUP[1:], "--sparse"], "--sparse belongs"),
        (["--data-shape", "5"], "takes --data-shape and --indices-shape"),
        ([*GRADIENT[1:], "--axis", "1"], "--axis belongs"),
        ([*GRADIENT[1:], "--reduction", "add"], "--reduction"),
    ],
)
def test_explain_called_wrongly_says_how(measured: list[int], arguments: list[str], text: str) -> None:
    assert text in " ".join(run("explain", *arguments, code=2).replace("│", " ").split())
    assert measured == [], "nothing is measured for it"


def test_explain_refuses_what_the_service_refuses(measured: list[int]) -> None:
    assert "index_depth_out_of_range" in run(*LOOKUP[:-1], "256,3", code=1)
    assert "unsupported_dtype" in run(*LOOKUP, "--indices-dtype", "int32", code=1)
    assert "output_too_large" in run(*LOOKUP[:-1], f"{2**27},1", code=1)
    refused = run(*LOOKUP, "--device", "gpu", code=1)
    assert "device_unavailable" in refused
    assert "Write 'auto' in place of 'gpu'" in refused  # the hint


@for_each(
    "wrong",
    [
        ["--data-shape", "2,x"], ["--data-shape", "-1"], ["--dialect", "onnx-1"], ["--device", "tpu"],
        ["--data-dtype", "float"], ["--axis", "1"], ["--op", "gather", "--batch-dims", "1"],
        ["--op", "gatherelements"], ["--op", "scatternd", "--reduction", "sum"],
        ["--op", "scatternd", "--dialect", "onnx-16", "--reduction", "max"],
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(measured: list[int], wrong: list[str]) -> None:
    assert not measured
    run(*LOOKUP, *wrong, code=2)
