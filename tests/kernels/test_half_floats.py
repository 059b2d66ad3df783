"""float16 and bfloat16 as float32 and back, by instructions and by integers, against NumPy and ml_dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numba
import numpy as np
import pytest
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from app.compilation.intrinsics import intrinsic
from app.kernels.numba_cpu import half_floats

LANES = 8
Convert = Callable[[Any, Any], Any]
EVERY = np.arange(1 << 16, dtype=np.uint16)


def converted(convert: Convert, source: NDArray[Any], target: type[Any]) -> NDArray[Any]:
    """All items of an array through `convert`, LANES at a time."""
    kinds: dict[int, Any] = {2: ir.IntType(16), 4: ir.FloatType()}
    out = np.zeros(source.size, target)

    def build(builder: Any, begin: Any, end: Any) -> None:
        read, written = (ir.VectorType(kinds[size], LANES) for size in (source.itemsize, out.itemsize))
        value = builder.load(builder.inttoptr(begin, read.as_pointer()), align=1, typ=read)
        builder.store(convert(builder, value), builder.inttoptr(end, written.as_pointer()), align=1)

    step: Any = intrinsic(types.none, (types.int64, types.int64), build)
    read_bytes, written_bytes = source.itemsize * LANES, out.itemsize * LANES

    def loop(begin: int, end: int, count: int) -> None:
        for at in range(count):
            step(begin + at * read_bytes, end + at * written_bytes)

    compiler: Any = numba.njit
    compiler(loop)(source.ctypes.data, out.ctypes.data, source.size // LANES)
    return out


def to_be_rounded() -> NDArray[np.float32]:
    """Each float16 and each bfloat16, halfway between each of them and the next, beside that, and at random."""
    with np.errstate(all="ignore"):
        halves = EVERY.view(np.float16).astype(np.float32)
    bits = np.concatenate([halves.view(np.uint32), EVERY.astype(np.uint32) << 16])
    middle = np.concatenate([bits + np.uint32(1 << shift) for shift in (12, 15, 11)])
    beside = np.concatenate([middle - np.uint32(1), middle + np.uint32(1)])
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 18).astype(np.uint32)
    return np.concatenate([bits, middle, beside, random]).view(np.float32)


WIDEN = {
    "float16": [half_floats.float_of_half, half_floats.float_of_half_by_integers],
    "bfloat16": [half_floats.float_of_bfloat16],
}
NARROW = {
    "float16": [half_floats.half_of_float, half_floats.half_of_float_by_integers],
    "bfloat16": [half_floats.bfloat16_of_float],
}
TYPES: dict[str, Any] = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.mark.parametrize(("name", "convert"), [(name, each) for name, row in WIDEN.items() for each in row])
def test_every_number_of_16_bits_is_widened_exactly(name: str, convert: Convert) -> None:
    found = converted(convert, EVERY, np.float32)
    with np.errstate(all="ignore"):
        expected = EVERY.view(TYPES[name]).astype(np.float32)
    nans = np.isnan(expected)
    assert (np.isnan(found) == nans).all()
    assert (np.signbit(found) == np.signbit(expected)).all()
    assert found[~nans].tobytes() == expected[~nans].tobytes()


@pytest.mark.parametrize(("name", "convert"), [(name, each) for name, row in NARROW.items() for each in row])
def test_a_float32_is_rounded_half_to_even(name: str, convert: Convert) -> None:
    source = to_be_rounded()
    found = converted(convert, source, np.uint16)
    with np.errstate(all="ignore"):
        expected = source.astype(TYPES[name]).view(np.uint16)
    nans = np.isnan(source)
    assert found[~nans].tobytes() == expected[~nans].tobytes()
    sign = (source.view(np.uint32)[nans] >> 16 & 0x8000).astype(np.uint16)
    if name == "float16":
        assert (found[nans] == sign | np.uint16(0x7E00)).all()
    else:
        upper = (source.view(np.uint32)[nans] >> 16).astype(np.uint16)
        assert (found[nans] == upper | np.uint16(0x40)).all()
