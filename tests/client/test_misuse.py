"""Arguments of another form than a call takes: an error that says which form it takes, before anything is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import gathernd
from gathernd import Feature
from tests.for_each import for_each


@for_each(
    ("features", "told"),
    [
        ({"items": [1]}, r"the features of a lookup are a list, as in \[\('items', \[3, 1\]\)\], not a dict"),
        ("items", "are a list.* not a str"),
        (None, "are a list.* not a NoneType"),
        (Feature("items", [1]), "are a list.* not a Feature"),
        (("items", [1]), "feature 0 is a Feature or its fields in a tuple or dict, not a str"),
        ([("items", [1]), ([1], "items")], "feature 1 begins with the name of its tensor, a str, not with a list"),
        ([(np.arange(2), "items")], "feature 0 begins with the name .* not with a ndarray"),
        ([(None, [1])], "feature 0 begins with the name .* not with a NoneType"),
        ([{"items": [1]}], r"feature 0 has the fields \['items'\]: take tensor, indices, offsets"),
        ([{"tensor": "items"}], "tensor and indices or keys are needed"),
        ([("items",)], "feature 0 has 1 fields: take tensor"),
        (
            [("items", [1], [0], None, None, "sum", False, None, None, None, False, None, None, 8)],
            "feature 0 has 14 fields",
        ),
        ([7], "not a int"),
    ],
)
def test_features_of_another_form_are_a_type_error_that_says_the_form(features: Any, told: str) -> None:
    with gathernd.Client("http://127.0.0.1:9", retries=0) as client, pytest.raises(TypeError, match=told):
        client.lookup(features)


@for_each("bags", ["offsets", "lengths"])
@for_each("pooling", [{}, {"pooling": "none"}])
def test_bags_without_pooling_are_refused_before_anything_is_sent(bags: str, pooling: Any) -> None:
    given: dict[str, Any] = {bags: [1 if bags == "lengths" else 0], **pooling}
    feature = Feature("items", [1], **given)
    with (
        gathernd.Client("http://127.0.0.1:9", retries=0) as client,
        pytest.raises(ValueError, match=f"feature 1 has {bags} and no pooling: give pooling='sum'"),
    ):
        client.lookup([("items", [1]), feature])


@for_each("name", [None, 7, b"items", np.arange(2), ["items"]])
def test_a_name_that_is_no_text_is_a_type_error(name: Any) -> None:
    with gathernd.Client("http://127.0.0.1:9", retries=0) as client:
        for call in (client.metadata, client.get, client.delete, lambda one: client.put(one, [1]),
                     lambda one: client.scatter(one, [[0]], np.ones(1)), client.alias):  # fmt: skip
            with pytest.raises(TypeError, match=f"is a str, not {type(name).__name__}"):
                call(name)
