"""Tuples of indices by the range that has their row, against the rules one tuple at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.kernels.split_by_range import split
from tests.for_each import for_each


def int64(values: Any) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def expected(tuples: list[tuple[int, ...]], stops: list[int]) -> dict[int, list[tuple[int, ...]]]:
    """By range the number of each tuple and the tuple, its row counted from where the range starts."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for place, (first, *rest) in enumerate(tuples):  # one at a time
        row = first + stops[-1] * (first < 0)
        number = next(number for number, stop in enumerate(stops) if row < stop)
        found.setdefault(number, []).append((place, row - ([0, *stops][number]), *rest))
    return found


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=7), st.lists(st.integers(1, 9), max_size=2), st.booleans(),
    st.data(),
)  # fmt: skip
def test_tuples_are_split_by_range_in_their_order(
    sizes: list[int], others: list[int], wrap: bool, data: st.DataObject
) -> None:
    stops = np.cumsum(sizes).tolist()
    dims = (stops[-1], *others)
    components = [st.integers(-size if wrap else 0, size - 1) for size in dims]
    tuples = data.draw(st.lists(st.tuples(*components), max_size=30))
    parts = split(np.array(tuples, np.int64).reshape(-1), dims, wrap, int64(stops))
    assert parts.bounds[0] == 0
    assert parts.bounds[-1] == len(tuples)
    moved = parts.moved.reshape(-1, len(dims)).tolist()
    found = {
        number: [(place, *row) for place, row in zip(parts.order[begin:end].tolist(), moved[begin:end], strict=True)]
        for number, begin, end in zip(parts.ranges, parts.bounds, parts.bounds[1:], strict=False)
    }
    assert found == expected(tuples, stops)
    assert parts.ranges == sorted(found)


@for_each(
    ("components", "wrap"),
    [
        ([6, 0], True), ([-7, 0], True), ([-1, 0], False), ([0, 3], True), ([0, -4], True), ([0, -1], False),
        ([0, 0, 5, 2, 6, 2], True), ([2**63 - 1, 0], True), ([-(2**63), 0], True), ([0, -(2**63)], False),
    ],
)  # fmt: skip
def test_a_component_that_is_out_of_bounds_is_found(components: list[int], wrap: bool) -> None:
    with pytest.raises(IndexError):
        split(int64(components), (6, 3), wrap, int64([2, 6]))


def test_a_table_without_rows_has_no_valid_index() -> None:
    assert split(int64([]), (0,), True, int64([])).ranges == []
    with pytest.raises(IndexError):
        split(int64([0]), (0,), True, int64([]))


def test_the_indices_are_left_as_they_are() -> None:
    indices = np.array([-1, 0, -6])
    split(indices, (6,), True, int64([2, 6]))
    assert indices.tolist() == [-1, 0, -6]
    assert indices.flags.writeable
