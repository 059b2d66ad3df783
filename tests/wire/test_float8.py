"""The floats of 8 bits in JSON: each bit pattern, and rounding against exact fractions."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from app.json_text.write_values import values_text
from app.tensors.dtypes import DTYPES
from app.tensors.tensor import Tensor
from tests.conftest import SOAK, slow_but_for
from tests.wire.json_requests import call, refused, request, tensor

pytestmark = pytest.mark.usefixtures("every_codec")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")
NAN = {"float8_e4m3fn": 0x7F, "float8_e5m2": 0x7E, "float8_e8m0fnu": 0xFF}


def number_of(dtype: str, bits: int) -> Fraction | str:
    """The number that 8 bits stand for, or its name in JSON."""
    if dtype == "float8_e8m0fnu":
        return "NaN" if bits == 0xFF else Fraction(2) ** (bits - 127)
    sign, size = (-1 if bits & 0x80 else 1), bits & 0x7F
    fraction, bias = (3, 7) if dtype == "float8_e4m3fn" else (2, 15)
    if dtype == "float8_e4m3fn" and size == 0x7F:
        return "NaN"
    if dtype == "float8_e5m2" and size >= 0x7C:
        return "NaN" if size > 0x7C else "-Infinity" if sign < 0 else "Infinity"
    exponent, rest = size >> fraction, size & ((1 << fraction) - 1)
    if exponent:
        return sign * Fraction(rest + (1 << fraction)) * Fraction(2) ** (exponent - bias - fraction)
    return sign * Fraction(rest) * Fraction(2) ** (1 - bias - fraction)


@cache
def finite(dtype: str) -> list[Fraction]:
    """The finite numbers of the type that are not negative, in ascending order: their bits are their places."""
    numbers = (number_of(dtype, bits) for bits in range(0x100 if dtype == "float8_e8m0fnu" else 0x80))
    return [number for number in numbers if isinstance(number, Fraction)]


def nearest(dtype: str, exact: Fraction, negative: bool) -> int | None:
    """The bits of the number nearest to one of the magnitude `exact`, half to even; None if there is none."""
    numbers = finite(dtype)
    if negative and exact and dtype == "float8_e8m0fnu":
        return None
    above = numbers[-1] * 2 if dtype == "float8_e8m0fnu" else 2 * numbers[-1] - numbers[-2]
    places = [*numbers, above]
    place = min(range(len(places)), key=lambda bits: (abs(places[bits] - exact), bits & 1))
    if exact > above or place == len(numbers):
        return None
    return place | (negative and dtype != "float8_e8m0fnu") << 7


def decimal(number: Fraction) -> str:
    """The exact decimal of a fraction whose denominator is a power of two."""
    power = number.denominator.bit_length() - 1
    return f"{number.numerator * 5**power}e-{power}"


def read(dtype: str, texts: list[str]) -> list[int]:
    body = request(tensor(dtype, f"[{', '.join(texts)}]", f"[{len(texts)}]"), rest=', "dialect": "openvino-8"')
    data = call(body).data
    assert isinstance(data, Tensor)
    found: list[int] = data.array.view(np.uint8).tolist()
    return found


def every(dtype: str) -> Tensor:
    """All 256 bit patterns."""
    return Tensor(DTYPES[dtype], (256,), np.arange(256, dtype=np.uint8).view(DTYPES[dtype].numpy))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_every_bit_pattern_is_written_as_its_number_and_read_back(dtype: str) -> None:
    text = b"".join(map(bytes, values_text(every(dtype)))).decode()
    values = json.loads(text)
    assert len(values) == 256
    for bits, value in enumerate(values):
        number = number_of(dtype, bits)
        assert value == number if isinstance(number, str) else np.float32(value) == np.float32(float(number)), bits
        if isinstance(number, Fraction) and not number:
            assert np.signbit(value) == (bits >= 0x80)
    expected = [NAN[dtype] if number_of(dtype, bits) == "NaN" else bits for bits in range(256)]
    assert read(dtype, [json.dumps(value) for value in values]) == expected
    exact = [number_of(dtype, bits) for bits in range(256)]
    texts = [
        json.dumps(number) if isinstance(number, str) else "-0" if bits == 0x80 and not number else decimal(number)
        for bits, number in enumerate(exact)
    ]
    assert read(dtype, texts) == expected


def check(dtype: str, texts: list[str]) -> None:
    """Each decimal is rounded once from its exact value, or refused."""
    kept, wanted = [], []
    for text in texts:
        huge = math.isinf(float(text))  # too large for a Fraction to be worth its while
        bits = None if huge else nearest(dtype, abs(Fraction(text)), text.startswith("-"))
        if bits is None:
            refused(request(tensor(dtype, f"[{text}]", "[1]")), "value_not_representable", "/data/values/0")
        else:
            kept.append(text)
            wanted.append(bits)
    assert read(dtype, kept) == wanted


@pytest.mark.parametrize("dtype", slow_but_for(("float8_e5m2",), FLOAT8))
def test_a_middle_goes_to_the_even_neighbor_and_the_least_digit_beside_it_decides(dtype: str) -> None:
    """Of every seventh pair; in a soak of each."""
    texts = []
    for low, high in list(pairwise(finite(dtype)))[:: 1 if SOAK else 7]:
        middle = (low + high) / 2
        power = middle.denominator.bit_length() - 1
        digits = str(middle.numerator * 5**power)
        texts += [f"{digits}e-{power}", f"{digits}{'0' * 30}1e-{power + 31}"]
        texts += [f"{int(digits) - 1}{'9' * 40}e-{power + 40}", f"{digits}.{'0' * 900}1e-{power}"]
    check(dtype, texts)
    if dtype != "float8_e8m0fnu":
        check(dtype, [f"-{text}" for text in texts])


EDGES = {
    "float8_e4m3fn": ("448", "464", "464.0000000000000000000000001", "463.99999", "480", "1e5", "1e39", "1e400", "-464",
                      "-465", "0", "-0", "1e-400", "0.0009765625", "0.00097656250000000000000000001"),
    "float8_e5m2": ("1E005388200283050537109", "57344",
                    "61439.999999999999999999999", "61440", "65536", "1e400", "-61440", "7.62939453125e-06"),
    "float8_e8m0fnu": ("9.3111E+99999999999999999999",
                       "170141183460469231731687303715884105728", "255211775190703847597530955573826158592",
                       "255211775190703847597530955573826158592.00001", "3e38", "0", "-0", "1e-400", "1.5", "3", "6",
                       "-1", "-1e-40", "8.8e-39", "1e-39"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", EDGES)
def test_the_edges_of_the_range(dtype: str) -> None:
    check(dtype, list(EDGES[dtype]))
