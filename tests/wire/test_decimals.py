"""Numbers as text to float64 and integers, against Python's own exact conversions."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from tests.wire.json_requests import made

pytestmark = pytest.mark.usefixtures("compiled")


def floats(texts: list[str], lead: str = "") -> list[float]:
    values: list[float] = made("float64", f"{lead}[{','.join(texts)}]").array.tolist()
    return values


def check(texts: list[str]) -> None:
    """Every text is read as Python reads it, far from the end of the body and close to it."""
    wanted = [float(text) for text in texts]
    found = floats([*texts, *["0"] * 40])[: len(texts)]
    wrong = [(text, one, other) for text, one, other in zip(texts, found, wanted, strict=True) if not same(one, other)]
    assert wrong == []
    for text in texts[:50]:
        assert same(floats([text])[0], float(text)), text


def same(one: float, other: float) -> bool:
    return one == other and math.copysign(1, one) == math.copysign(1, other)


def exact(value: Fraction) -> str:
    """The decimal digits of a fraction whose denominator is a power of two, all of them."""
    shift = value.denominator.bit_length() - 1
    digits = value.numerator * 5**shift
    return f"{digits}e-{shift}"


def neighbours(text: str) -> list[str]:
    """The decimal with its last digit one less, as it is, one more, and with a tail of zeros and a one."""
    digits, _, power = text.partition("e")
    whole = int(digits)
    return [f"{whole - 1}e{power}", text, f"{whole + 1}e{power}", f"{whole * 10**30 + 1}e{int(power) - 30}"]


def test_halfway_cases_and_their_neighbours(soak_scale: int) -> None:
    rng = random.Random(1)
    texts: list[str] = []
    for _ in range(300 * soak_scale):
        bits = rng.choice([rng.getrandbits(63), rng.getrandbits(54), rng.getrandbits(12)])
        value = np.uint64(bits).view(np.float64).item()
        if math.isfinite(value) and math.isfinite(math.nextafter(value, math.inf)):
            middle = (Fraction(value) + Fraction(math.nextafter(value, math.inf))) / 2
            texts += [text for text in neighbours(exact(middle)) if math.isfinite(float(text))]
    check(texts)


def test_random_digits_points_and_exponents(soak_scale: int) -> None:
    rng = random.Random(4)
    texts: list[str] = []
    while len(texts) < 20_000 * soak_scale:
        whole = str(rng.getrandbits(rng.choice([3, 10, 27, 40, 64, 90])))
        part = "".join(rng.choices("0123456789", k=rng.choice([0, 0, 1, 7, 8, 9, 12, 15, 16, 17, 18, 24, 40])))
        power = rng.choice(
            ["", "", "", f"e{rng.randrange(-30, 30)}", f"E+{rng.randrange(330):05}", f"e-{rng.randrange(360)}"]
        )
        text = rng.choice(["", "-"]) + whole + ("." + part if part else "") + power
        if math.isfinite(float(text)):
            texts.append(text)
    check(texts)


HARD = [
    "0", "-0", "0.0", "0e5", "0.000000000000000000000000000000000000001",
    "1e00000000000000000000000000000000000000005", "1e-00000000000000000000000000000000000000005",
    "0e99999999999999999999999999", "0.00e-99999999999999999999999999", "1e-99999999999999999999999999",
    "4.9406564584124654e-324", "2.4703282292062327e-324", "2.4703282292062328e-324", "2.2250738585072011e-308",
    "2.2250738585072012e-308", "2.2250738585072014e-308", "1.7976931348623157e308", "1.7976931348623158e308",
    "1.797693134862315807e308", "179769313486231580793e288", "9007199254740993", "9007199254740992.5",
    "18446744073709551615", "18446744073709551616", "9999999999999999999", "99999999999999999999", "0.3", "0.1e1",
    "123456789012345678", "1234567890123456789", "12345678901234567890", "8.98846567431158e307", "6.103515625e-05",
    "1e23", "8.5e22", "7.2057594037927933e16",
]  # fmt: skip
LONG = [
    "1" + "0" * 300,
    "0." + "0" * 300 + "123456789012345678901234567890e300",
    "1" * 309,
    "0." + "0" * 5000 + "1e5000",
    "1" + "0" * 5000 + "e-5000",
]


def test_known_hard_cases() -> None:
    check([*HARD, *LONG])


def test_narrowing_is_exact_for_every_float16_and_its_middles() -> None:
    items = np.arange(0x7C00, dtype=np.uint16)
    values = items.view(np.float16).astype(np.float64)
    middles = (values[:-1] + values[1:]) / 2
    texts = [
        repr(value)
        for value in np.concatenate([values, middles, np.nextafter(middles, 0), np.nextafter(middles, 1e9)]).tolist()
    ]
    wanted = np.concatenate([items, items[:-1] + (items[:-1] & 1), items[:-1], items[1:]])
    assert (made("float16", f"[{','.join(texts)}]").array.view(np.uint16) == wanted).all()


def test_narrowing_is_exact_for_every_bfloat16_and_its_middles() -> None:
    items = np.arange(0x7F80, dtype=np.uint32)
    values = (items << 16).view(np.float32).astype(np.float64)
    middles = (values[:-1] + values[1:]) / 2
    texts = [
        repr(value)
        for value in np.concatenate([values, middles, np.nextafter(middles, 0), np.nextafter(middles, 1e39)]).tolist()
    ]
    wanted = np.concatenate([items, items[:-1] + (items[:-1] & 1), items[:-1], items[1:]])
    assert (made("bfloat16", f"[{','.join(texts)}]").array.view(np.uint16) == wanted).all()


def test_float32_is_rounded_once_more_from_binary64() -> None:
    text = "7.038531e-26"  # rounded at once it were another float32
    assert made("float32", f"[{text}]").array.view(np.uint32)[0] == np.float32(float(text)).view(np.uint32)
