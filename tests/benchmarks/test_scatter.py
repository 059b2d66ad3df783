"""The benchmark of scatters: its work has the right results, and each contender is judged by them."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from importlib.util import find_spec
from math import prod

import numpy as np
import pytest

from app.dispatch.measured_rates import new_event_loop
from app.kernels import numpy_cpu
from benchmarks import beside_peers, scatter, scatter_lines, scatter_peers
from benchmarks.scatter_lines import LINES, Line
from tests.for_each import for_each
from tests.kernels import scatter_loops

SMALL = {1_000_000: 400, 100_000: 60, 10_000: 20, 2048: 12, 1_000: 30}
"""Sizes of the lines that a test can afford."""


def small(line: Line) -> Line:
    shapes = (tuple(SMALL.get(size, size) for size in shape) for shape in (line.data, line.indices))
    data, indices = shapes
    return replace(line, data=data, indices=indices)


@for_each("line", LINES)
def test_the_result_of_each_line_is_that_of_a_loop(line: Line) -> None:
    line = small(line)
    data, indices, updates = inputs = scatter_lines.make_inputs(line)
    found = scatter_lines.scatter_by_numpy(line, inputs, np.empty_like(data))
    if line.axis is None:
        expected = scatter_loops.scatter_nd(data, indices, updates, line.reduction)
    else:
        expected = scatter_loops.scatter_elements(data, indices, updates, line.axis, line.reduction)
    assert scatter_loops.same(found, expected)
    assert updates.shape == line.updates
    assert line.plan.data_items == data.size
    assert line.plan.update_items == updates.size


@pytest.mark.parametrize("line", [line for line in LINES if line.reduction == "none"], ids=lambda line: line.name)
def test_without_a_reduction_no_place_comes_twice(line: Line) -> None:
    line = small(line)
    data, indices, updates = scatter_lines.make_inputs(line)
    inputs = scatter_lines.Inputs(np.zeros_like(data), indices, np.ones_like(updates))
    written = scatter_lines.scatter_by_numpy(line, inputs, np.empty_like(data))
    assert np.count_nonzero(written) == prod(line.updates)


def test_contenders_take_turns_and_a_wrong_one_does_not_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scatter, "numba_cpu", numpy_cpu)

    def breaks(*_: object) -> None:
        raise ValueError("no such type")

    def is_wrong(line: Line, inputs: scatter_lines.Inputs, threads: int):  # type: ignore[no-untyped-def]
        yield lambda: inputs.data

    peers = {**scatter_peers.PEERS, "wrong one": is_wrong, "unable one": breaks}
    monkeypatch.setattr(scatter, "PEERS", peers)
    names = ["numpy", *(["onnxruntime"] if find_spec("onnxruntime") else []), "wrong one", "unable one"]
    loop = new_event_loop()
    times, wrong = scatter.measure(small(LINES[3]), names, Namespace(threads=2, seconds=0.002, rounds=2), loop)
    loop.close()
    assert set(times) == {"gathernd", "one thread", *names[:-2]}
    assert min(times.values()) > 0
    assert wrong == {"wrong one"}
    assert "unable one cannot: ValueError: no such type" in capsys.readouterr().out
    figures = beside_peers.shown(times, wrong, ["gathernd", "wrong one", "unable one"])
    assert float(figures[0]) > 0
    assert figures[1:] == ["wrong", "-"]


def test_a_result_of_ours_that_is_not_numpys_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy_cpu, "run", lambda *_, **__: -1)
    monkeypatch.setattr(scatter, "numba_cpu", numpy_cpu)
    with pytest.raises(SystemExit, match="gathernd is wrong"):
        scatter.measure(small(LINES[3]), [], Namespace(threads=1, seconds=0.002, rounds=1), None)
