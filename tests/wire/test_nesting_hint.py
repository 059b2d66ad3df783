"""Which list is said to differ from the shape, and how many values are said to have come."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.errors import GatherError
from app.json_text.nesting_hint import hint
from tests.for_each import for_each
from tests.wire.json_requests import call, request

AT = "/data/values"


def told(values: Any, shape: list[int] | None, *, pairs: bool = False) -> str | None:
    text = values if isinstance(values, str) else json.dumps(values)
    return hint(text.encode(), "data", shape, pairs, len(text) - len(text.lstrip("[")), AT)


@for_each(
    ("values", "shape", "pairs", "words"),
    [
        ([1, 2, 3], [2, 2], False, "Send 4 values in data, as shape [2, 2] asks, or make the shape fit them: 3 came."),
        ([], [1], False, "Send 1 values in data, as shape [1] asks, or make the shape fit them: 0 came."),
        ([1], [2**62, 8], False, "Send more than 2^63 values in data,"),
        ([[1, 2], [3]], [2, 2], False, f"Send 2 values in the list at {AT}/1, as shape [2, 2] asks: 1 came."),
        ([[1, 2]], [2, 2], False, f"Send 2 values in the list at {AT}, as shape [2, 2] asks: 1 came."),
        ([[1, 2], 3], [2, 2], False, f"Put a list at {AT}/1 in place of one value."),
        ([[1, [2]], [3, 4]], [2, 2], False, f"Put one value at {AT}/0/1 in place of a list."),
        ([[["a,]"], ["b\\"]], [["c"]]], None, False, f"Send 2 values in the list at {AT}/1, as in the first of these"),
        ([[{"x": [1, "}"]}, 2], [3]], None, False, f"Send 2 values in the list at {AT}/1,"),
        ([[0, 1], [2]], [2], True, f"Write the item at {AT}/1 as a pair [re, im]."),
        ([[1, 2], [3, 4]], [2, 2], False, None),
        ('["a, [b', [2], False, None),
        ("[[1, 2], [3, ", [2, 2], False, None),
    ],
)
def test_the_first_list_that_differs_is_named(
    values: Any, shape: list[int] | None, pairs: bool, words: str | None
) -> None:
    found = told(values, shape, pairs=pairs)
    assert found is None if words is None else (found or "").startswith(words)


@pytest.mark.usefixtures("compiled")
def test_the_values_of_a_long_flat_list_are_counted() -> None:
    sent = request('{"dtype": "int8", "shape": [400001], "values": [' + "1," * 399_999 + "1]}")
    with pytest.raises(GatherError) as caught:
        call(sent)
    assert caught.value.code == "element_count_mismatch"
    assert (caught.value.hint or "").endswith("or make the shape fit them: 400000 came.")
