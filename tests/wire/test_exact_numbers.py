"""Numbers in JSON against exact arithmetic: fractions for integers, Python's float for the middles between floats."""

from __future__ import annotations

import json
import math
import struct
from contextlib import ExitStack
from decimal import Decimal
from fractions import Fraction
from json import loads
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import GatherError
from app.formats.json.read_request import read_request
from app.formats.oip.infer_document import Model
from app.formats.oip.read_body import read_body
from app.json_text import lossless_json
from app.json_text.constants import ARRAY_KEYS, OTHER_NUMBERS, PLAIN_NUMBERS, SHORT_FRACTIONS
from app.json_text.envelope import parse_envelope
from app.json_text.find_arrays import FoundArrays, find_arrays, scan_tensors
from app.json_text.lossless_json import MAX_DIGITS, Number, integer
from app.memory.budget import UNCOUNTED, Memory
from app.operators.registry import OPERATORS
from app.tensors.buffer_type import Buffer
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Call
from app.tensors.scatter_call import TABLE_SCATTER
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.for_each import for_each
from tests.wire.json_requests import call, made, refused, request, tensor

pytestmark = pytest.mark.usefixtures("every_codec")

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = [name for name, dtype in DTYPES.items() if dtype.kind in ("int", "uint")]
MODEL = Model("gathernd", OPERATORS["gathernd"].signature)
NO_ARRAYS = FoundArrays(closed=True, members=1, numbers=PLAIN_NUMBERS, arrays=0, places=())
EDGES = [edge + off for dtype in INTEGERS for edge in (DTYPES[dtype].low, DTYPES[dtype].high) for off in (-1, 0, 1)]


@st.composite
def numbers(draw: st.DrawFn) -> str:
    """A JSON number near an integer that 64 bits can hold, written in some way."""
    whole = draw(st.one_of(st.sampled_from(EDGES), st.integers(-(2**65), 2**65), st.integers(-300, 300)))
    sign, digits = "-" if whole < 0 else "", str(abs(whole))
    moved = draw(st.integers(-25, 25))
    if moved > 0 and whole:
        digits += "0" * moved
    part = ""
    if moved < 0:
        digits = digits.rjust(1 - moved, "0")
        digits, part = digits[:moved], digits[moved:]
    part += draw(st.sampled_from(["", "", "", "0", "000", "0" * 30, "0" * 30 + "1", "1", "5"]))
    exponent = ""
    if moved or draw(st.booleans()):
        shown = draw(st.sampled_from([str(abs(moved)), str(abs(moved)).rjust(4, "0")]))
        exponent = draw(st.sampled_from("eE")) + ("-" if moved > 0 else draw(st.sampled_from(["", "+"]))) + shown
    return sign + digits + ("." + part if part else "") + exponent


def value(text: str) -> Fraction:
    """What a JSON number is, exactly."""
    head, _, exponent = text.lower().partition("e")
    return Fraction(head) * Fraction(10) ** int(exponent or 0)


def item(tensor: Tensor | str) -> Any:
    """The only item."""
    assert isinstance(tensor, Tensor)
    return tensor.array.tolist()[0]


def outcome(read: Any) -> Any:
    """What is read, or the code of the refusal."""
    try:
        return read()
    except GatherError as error:
        return error.code


@given(text=numbers(), dtype=st.sampled_from(INTEGERS))
def test_an_integer_is_what_its_decimal_text_says_in_every_format(text: str, dtype: str) -> None:
    exact, known = value(text), DTYPES[dtype]
    fits = exact.denominator == 1 and known.low <= exact <= known.high
    wanted = int(exact) if fits else "value_not_representable"
    body = request(tensor(dtype, f"[{text}]", "[1]"))
    assert outcome(lambda: item(call(body).data)) == wanted
    assert outcome(lambda: item(made(dtype, f"[[{text} ]]"))) == wanted
    assert outcome(lambda: item(made(dtype, text, "[]"))) == wanted
    changed = body.replace(b'"data":', b'"updates":')
    assert outcome(lambda: item(read_request(changed, b"", TABLE_SCATTER, Limits())[0].updates)) == wanted
    infer = (
        f'{{"inputs": [{{"name": "data", "datatype": "{known.oip}", "shape": [1], "data": [{text}]}}, '
        '{"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [0]}]}'
    ).encode()
    assert outcome(lambda: item(read_body(infer, None, MODEL, Limits()).call.data)) == wanted


@given(text=numbers())
def test_batch_dims_axis_and_shapes_are_what_their_decimal_text_says(text: str) -> None:
    exact = value(text)
    whole = int(exact) if exact.denominator == 1 else None
    for name, operator in (("batch_dims", "gathernd"), ("axis", "gather")):
        body = request(rest=f', "{name}": {text}')
        wanted: Any = "invalid_field" if whole is None else whole

        def parameter(body: bytes = body, operator: str = operator) -> int:
            found: Call = call(body, operator)
            return found.parameters[0]

        assert outcome(parameter) == wanted
    shaped = request(tensor("int8", "[]", f"[0, {text}]"))
    if whole is None or whole < 0:
        refused(shaped, "invalid_field", "/data/shape/1")
    else:
        data = call(shaped).data
        assert isinstance(data, Tensor)
        assert data.shape == (0, whole)


def middle(source: Random) -> Fraction:
    """The middle between two neighbouring floats, of any size."""
    bits = source.choice((source.getrandbits(63), source.getrandbits(52), source.getrandbits(3), 0x7FEFFFFFFFFFFFFF))
    number = struct.unpack("<d", struct.pack("<Q", bits % 0x7FF0000000000000))[0]
    upper = Fraction(math.nextafter(number, math.inf)) if bits < 0x7FEFFFFFFFFFFFFF else Fraction(2) ** 1024
    return (Fraction(number) + upper) / 2


def written(exact: Fraction) -> tuple[str, int]:
    """(digits, power): a fraction whose denominator is a power of two, as digits * 10**power."""
    power = exact.denominator.bit_length() - 1
    return str(exact.numerator * 5**power), -power


def beside(source: Random) -> str:
    """A number of many digits beside the middle of two floats, or on it, in one of the ways to write it."""
    digits, power = written(middle(source))
    last = source.choice((0, 0, 1, -1, 2, -2))
    zeros = source.choice((0, 0, 1, 30, 800))
    digits = str(int(digits + "0" * zeros) + last)
    power -= zeros
    if source.random() < 0.3:
        cut = source.randint(17, 40)
        digits, power = digits[:cut], power + max(0, len(digits) - cut)
    match source.randrange(4):
        case 0:
            return f"{digits}e{power}"
        case 1:
            return f"{digits[0]}.{digits[1:]}E{power + len(digits) - 1:+}" if len(digits) > 1 else f"{digits}e{power}"
        case 2 if -1200 < power < 0:
            padded = digits.rjust(1 - power, "0")
            return f"{padded[:power]}.{padded[power:]}"
        case _:
            return f"0.{'0' * source.choice((0, 3))}{digits}{'0' * source.choice((0, 900))}e{power + len(digits)}"


@pytest.mark.parametrize("seed", range(4))
def test_numbers_beside_the_middle_of_two_floats_are_rounded_as_python_rounds_them(seed: int, soak_scale: int) -> None:
    source = Random(seed)
    texts = [beside(source) for _ in range(500 * soak_scale)]
    for text in texts:
        wanted = float(text)
        for sign in ("", "-"):
            found = outcome(lambda text=text, sign=sign: item(made("float64", f"[{sign}{text}, 0]")))
            assert found == ("value_not_representable" if math.isinf(wanted) else float(sign + text)), text
    finite = [text for text in texts if not math.isinf(float(text))]
    assert made("float64", f"[{','.join(finite)}]").array.tolist() == [float(text) for text in finite]


@given(
    digits=st.integers(1, 2**64 - 1),
    power=st.integers(280, 340),
    point=st.integers(0, 19),
    dtype=st.sampled_from(FLOATS),
)
@example(digits=9, power=308, point=0, dtype="float64")
@example(digits=35953862697246318, power=292, point=0, dtype="float64")
@example(digits=6511, power=308, point=3, dtype="float32")
@example(digits=2**64 - 1, power=308, point=19, dtype="float16")
def test_numbers_around_the_largest_float64_are_that_float64_or_refused(
    digits: int, power: int, point: int, dtype: str
) -> None:
    text = str(digits).rjust(point + 1, "0")
    text = f"{text[: len(text) - point]}.{text[len(text) - point :]}0e{power + point}"
    wanted = float(text)
    for sign in ("", "-"):
        found = outcome(lambda sign=sign: made(dtype, f"[{sign}{text}]").array.tolist())
        assert found == (
            [float(sign + text)] if dtype == "float64" and wanted < math.inf else "value_not_representable"
        )


@for_each("dtype", ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"])
@for_each(
    ("text", "number"),
    [
        (r'"\u004eaN"', math.nan), (r'"Na\u004E"', math.nan), (r'"\u0049nfinity"', math.inf),
        (r'"\u002dInfinity"', -math.inf), (r'"-Infinit\u0079"', -math.inf),
        (r'"\u002D\u0049\u006e\u0066\u0069\u006e\u0069\u0074\u0079"', -math.inf),
    ],
)  # fmt: skip
def test_the_names_of_non_finite_numbers_may_have_escapes(dtype: str, text: str, number: float) -> None:
    values = f"[[0, {text}]]" if dtype.startswith("complex") else f"[0, {text}]"
    data = made(dtype, values)
    parts = data.array.view(DTYPES[dtype].numpy).tolist()
    found = parts[0].imag if dtype.startswith("complex") else float(parts[1])
    assert found == number or (math.isnan(found) and math.isnan(number))


@for_each(
    "text", [r'"\n"', r'"\u004e"', r'"\u004eaN "', r'"\u002d"', r'"--Infinity"', r'"\u002d\u002dInfinity"',
             r'"\u004eAN"',
             r'"Infinity\u0000"', r'"-\u004eaN"', r'"\ud83d\ude00"', r'"\ud800"', '"NaN\\""', '""', '"-"', '"Infinit"'],
)  # fmt: skip
def test_other_strings_among_floats_are_refused_with_escapes_or_without(text: str) -> None:
    refused(request(tensor("float32", f"[1, {text}, null]")), "value_not_representable", "/data/values/1")


def unchecked(body: Buffer, memory: Memory) -> None:
    raise AssertionError(f"{bytes(body)!r} is JSON, and need not be looked at again")


@for_each("text", ['{"a": -0}', '{"a": [1, -0]}', '{"a":-0}', '{"a": {"b":\t-0\n}, "c": 1}'])
def test_minus_zero_keeps_its_sign_outside_arrays(text: str) -> None:
    found = parse_envelope(text.encode(), text.encode(), NO_ARRAYS, unchecked, UNCOUNTED)["a"]
    while type(found) in (list, dict):
        found = list(found.values() if type(found) is dict else found)[-1]
    assert float(found.text) == 0
    assert math.copysign(1, float(found.text)) == -1


@for_each("text", ['{"tensor": "items-07"}', '{"a": "x", "b-0": "-0"}', '{"a": 10, "b": [-1, 0]}'])
def test_names_with_minus_zero_take_the_fast_way(text: str) -> None:
    with patch.object(lossless_json, "loads", side_effect=AssertionError("the slow way")):
        assert parse_envelope(text.encode(), text.encode(), NO_ARRAYS, unchecked, UNCOUNTED) == loads(text)


@for_each(
    ("text", "numbers"),
    [
        ("0", PLAIN_NUMBERS), ("-17", PLAIN_NUMBERS), ("1" * 18, PLAIN_NUMBERS), ("1" * 19, OTHER_NUMBERS),
        ("1.0", SHORT_FRACTIONS), ("-0.5", SHORT_FRACTIONS), ("1." + "0" * 14, SHORT_FRACTIONS),
        ("-1." + "0" * 15, OTHER_NUMBERS), ("1" * 14 + ".5", SHORT_FRACTIONS), ("1" * 15 + ".5", OTHER_NUMBERS),
        ("1e0", OTHER_NUMBERS), ("1.0E0", OTHER_NUMBERS), ("1" * 19 + ".0", OTHER_NUMBERS),
        ("1.5,2", SHORT_FRACTIONS), ("1e0,1.5", OTHER_NUMBERS), ("1.5,1e0,2", OTHER_NUMBERS),
        ("1.5.5", SHORT_FRACTIONS),
    ],
)  # fmt: skip
def test_how_numbers_outside_arrays_are_written(text: str, numbers: int) -> None:
    if scan_tensors.run is scan_tensors.plain:  # which makes no difference between them
        numbers = OTHER_NUMBERS
    for body in (f"[{text}]", f'{{"a":{text}}}', text):
        view = np.frombuffer(body.encode(), np.uint8)
        for depth in ARRAY_KEYS:
            assert find_arrays(view, depth, 4).numbers == numbers
        assert scan_tensors.run(view)[2] == numbers
    body = f'{{"x": [{text}], "data": {{"y": [{text}], "values": [1e9]}}}}'
    assert scan_tensors.run(np.frombuffer(body.encode(), np.uint8))[2] == numbers


@given(text=st.from_regex(r"-?(0|[1-9][0-9]{0,13})\.[0-9]{1,14}", fullmatch=True), dtype=st.sampled_from(FLOATS))
def test_a_fill_value_is_the_number_that_a_value_of_the_same_text_is(text: str, dtype: str) -> None:
    """Also where a fast library reads it, as a float that is written again for the type."""
    body = request(tensor(dtype, f"[{text}]", "[1]"), rest=f', "out_of_bounds": "fill", "fill_value": {text}')

    def filled() -> bytes:
        found = call(body)
        assert found.fill_value is not None
        return found.fill_value.item(DTYPES[dtype]).array.tobytes()

    def given_as_value() -> bytes:
        return made(dtype, f"[{text}]").array.tobytes()

    assert outcome(filled) == outcome(given_as_value)


@for_each("shape", ["[1.0]", "[2.0, 3]", "[2.000000000000, 0.0, -0.0]"])
def test_a_shape_with_fractions_is_read_exactly_in_the_fast_way(shape: str) -> None:
    wanted = tuple(map(int, loads(shape)))
    values = json.dumps([0] * math.prod(wanted))
    with ExitStack() as ways:
        if scan_tensors.run is not scan_tensors.plain:
            ways.enter_context(patch.object(lossless_json, "loads", side_effect=AssertionError("the slow way")))
        found = call(request(tensor("int8", values, shape))).data
    assert isinstance(found, Tensor)
    assert found.shape == wanted


@for_each("text", ["0e999", "-0.0e-999", "0.000E5", "00e9", "1e-999", "-0.1e-400", "1e999", "0.5", "-0", "0"])
def test_very_small_numbers_are_no_zeros(text: str) -> None:
    exact = Decimal(text)
    assert integer(Number(text)) == (max(int(exact), -(10**MAX_DIGITS)) if exact == exact.to_integral_value() else None)
