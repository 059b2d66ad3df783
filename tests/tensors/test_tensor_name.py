"""The pattern of tensors' names: what it takes, and that no other module has one of its own."""

from __future__ import annotations

import re

import pytest

from app.tensors.tensor_name import PATTERN, TENSOR_NAME


@pytest.mark.parametrize("name", ["a", "0", "Items", "a.b_c-D", "x" * 128])
def test_a_name_is_one_by_both_patterns(name: str) -> None:
    assert TENSOR_NAME.fullmatch(name)
    assert re.search(PATTERN, name)


@pytest.mark.parametrize("name", ["", ".a", "_a", "-a", "x" * 129, "a b", "a/b", "é", "a%2Fb", "a\n", "a@7"])
def test_anything_else_is_none(name: str) -> None:
    assert not TENSOR_NAME.fullmatch(name)
    assert not re.search(PATTERN.replace("$", r"\Z"), name)
