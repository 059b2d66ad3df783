"""The floats of 8 bits in JSON, base64 and safetensors: each bit pattern, and rounding against exact fractions."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from app.errors import GatherError
from app.json_text.write_values import values_text
from app.tensors.dtypes import DTYPES
from app.tensors.tensor import Tensor
from tests.conftest import SOAK, samples, slow_but_for
from tests.for_each import for_each
from tests.wire.float8_reference import FLOAT8, NAN, finite, nearest, number_of
from tests.wire.json_requests import call, made, refused, request, tensor

pytestmark = pytest.mark.usefixtures("every_codec")


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


@pytest.mark.parametrize("dtype", FLOAT8)
def test_random_decimals_are_rounded_once(dtype: str) -> None:
    source = Random(dtype)
    numbers = finite(dtype)
    low, high = float(numbers[0] or numbers[1]), float(numbers[-1])
    texts = []
    for _ in range(samples(4000)):
        sign = "-" if dtype != "float8_e8m0fnu" and source.random() < 0.5 else ""
        number = low * (high / low) ** source.uniform(-0.1, 1)
        texts.append(f"{sign}{number:.{source.randint(0, 25)}e}")
        texts.append(f"{sign}{source.randint(0, 600)}.{source.randint(0, 10 ** source.randint(0, 20))}")
    check(dtype, texts)


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


@for_each(("dtype", "text"), [(dtype, text) for dtype, texts in EDGES.items() for text in texts])
def test_the_edges_of_the_range(dtype: str, text: str) -> None:
    check(dtype, [text])


@for_each(
    ("dtype", "name", "bits"),
    [
        ("float8_e4m3fn", "Infinity", None), ("float8_e4m3fn", "-Infinity", None), ("float8_e4m3fn", "NaN", 0x7F),
        ("float8_e5m2", "Infinity", 0x7C), ("float8_e5m2", "-Infinity", 0xFC), ("float8_e5m2", "NaN", 0x7E),
        ("float8_e8m0fnu", "Infinity", None), ("float8_e8m0fnu", "NaN", 0xFF),
    ],
)  # fmt: skip
def test_infinity_is_read_only_where_the_type_has_it(dtype: str, name: str, bits: int | None) -> None:
    if bits is None:
        refused(request(tensor(dtype, f'["{name}"]', "[1]")), "value_not_representable", "/data/values/0")
    else:
        assert read(dtype, [f'"{name}"']) == [bits]


def test_a_hint_offers_what_the_type_lacks() -> None:
    def hint(dtype: str, text: str) -> str | None:
        with pytest.raises(GatherError) as caught:
            made(dtype, f"[{text}]", "[1]")
        return caught.value.hint

    assert hint("float8_e4m3fn", '"Infinity"') == (
        "Write a number at /data/values/0, such as 0, or use dtype 'float64', which has Infinity."
    )
    assert hint("float8_e8m0fnu", "-1") == (
        "Write a number of 0 or more at /data/values/0, or use dtype 'float32', which has negative numbers."
    )
    assert hint("float8_e5m2", "1e9") == (
        "Write a smaller number at /data/values/0, such as 0, or use dtype 'float32', which holds it."
    )
    assert hint("float8_e4m3fn", "1e400") == "Write a smaller number at /data/values/0, such as 0."
