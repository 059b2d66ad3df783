"""Conversions of floats are rounded once, half to even: held against exact fractions."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.kernels.float_conversion import OUTPUT_DTYPES, convert_floats
from app.tensors.dtypes import DTYPES
from tests.conftest import SOAK, slow_but_for
from tests.rounding import rounded


def check(items: NDArray[Any], source: str, target: str) -> None:
    found = convert_floats(items, DTYPES[source], DTYPES[target])
    assert found.dtype == DTYPES[target].numpy
    with np.errstate(invalid="ignore"):  # of NaNs that signal
        numbers = items.view(DTYPES[source].numpy).astype(np.float64)
        wide = found.astype(np.float64)
    is_exact = target in (source, "float64") or (target == "float32" and DTYPES[source].item_size == 2)
    expected = numbers if is_exact else np.array([rounded(float(number), target) for number in numbers])
    np.testing.assert_array_equal(wide, expected)
    np.testing.assert_array_equal(np.signbit(wide)[numbers == 0], np.signbit(numbers[numbers == 0]))


@pytest.mark.parametrize("target", slow_but_for(("float32", "float16"), OUTPUT_DTYPES))
@pytest.mark.parametrize("source", ["float16", "bfloat16"])
def test_every_number_of_two_bytes(source: str, target: str) -> None:
    """In `make test` every eleventh."""
    check(np.arange(0, 1 << 16, 1 if SOAK else 11, dtype=np.uint16), source, target)


@pytest.mark.parametrize("target", OUTPUT_DTYPES)
@pytest.mark.parametrize("source", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_every_number_of_one_byte(source: str, target: str) -> None:
    check(np.arange(1 << 8, dtype=np.uint8), source, target)


@pytest.mark.parametrize("target", OUTPUT_DTYPES)
@pytest.mark.parametrize("source", ["float32", "float64"])
@given(data=st.data())
def test_numbers_at_random(source: str, target: str, data: st.DataObject) -> None:
    dtype = DTYPES[source]
    patterns = data.draw(st.lists(st.integers(0, 2 ** (8 * dtype.item_size) - 1), max_size=30))
    check(np.array(patterns, dtype.carrier), source, target)


@pytest.mark.parametrize("target", ["float16", "bfloat16", "float32"])
@given(halves=st.lists(st.tuples(st.integers(0, 2**15 - 2), st.integers(-1, 1)), max_size=20))
def test_numbers_beside_the_middle_of_two(target: str, halves: list[tuple[int, int]]) -> None:
    """A float64 that is nearly in the middle: through float32 it would be rounded to the middle, and then again."""
    dtype, numbers = DTYPES[target], []
    step = 1 << (8 * dtype.item_size - 16)
    for pattern, beside in halves:
        pair = np.array([pattern * step, pattern * step + 1], dtype.carrier).view(dtype.numpy).astype(np.float64)
        if np.isfinite(pair).all():
            middle = struct.unpack("<q", struct.pack("<d", pair.mean()))[0]
            numbers.append(struct.unpack("<d", struct.pack("<q", middle + beside))[0])
    check(np.array(numbers, np.float64), "float64", target)
