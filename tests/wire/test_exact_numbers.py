"""Numbers in JSON against exact arithmetic: fractions for integers, Python's float for the middles between floats."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import GatherError
from app.formats.json.read_request import read_request
from app.formats.oip.infer_document import Model
from app.formats.oip.read_body import read_body
from app.operators.registry import OPERATORS
from app.tensors.dtypes import DTYPES
from app.tensors.scatter_call import TABLE_SCATTER
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.wire.json_requests import call, made, request, tensor

pytestmark = pytest.mark.usefixtures("every_codec")

FLOATS = ["float16", "bfloat16", "float32", "float64"]
INTEGERS = [name for name, dtype in DTYPES.items() if dtype.kind in ("int", "uint")]
MODEL = Model("gathernd", OPERATORS["gathernd"].signature)
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
    assert outcome(lambda: item(read_body((infer, None), MODEL, Limits()).call.data)) == wanted


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
