"""Each rule of the native JSON format, by name."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from app.json_text import envelope
from app.tensors.dtypes import DTYPES
from tests.for_each import for_each
from tests.strings import items
from tests.wire.json_requests import call, made, refused, refused_items, request, tensor

pytestmark = pytest.mark.usefixtures("every_codec")

INTEGERS = [name for name, row in DTYPES.items() if row.kind in ("int", "uint")]
FLOATS = [name for name, row in DTYPES.items() if row.kind == "float" and row.item_size > 1]


COUNT, VALUE = "element_count_mismatch", "value_not_representable"


def listed(dtype: str, values: str, shape: str | None = None) -> list[Any]:
    found: list[Any] = items(made(dtype, values, shape)).tolist()
    return found


class TestNumbers:
    @for_each(
        ("dtype", "text"),
        [
            ("uint8", "300"),
            ("int64", str(2**63)),
            ("uint64", str(2**64)),
            ("int64", str(2**64)),
            ("uint64", "-1"),
            ("int32", "1.5"),
            ("int64", "1e400"),
            ("int64", "1e19"),
            ("uint64", "1e20"),
            ("uint64", "18446744073709551616.0"),
            ("int8", "1e-1"),
            ("float64", "1e400"),
            ("float64", "-1e309"),
            ("float64", "1" + "0" * 400),
            ("float16", "65520"),
            ("float16", "1e400"),
            ("bfloat16", "3.3961775292304601e38"),
            ("float32", "3.4028235677973367e38"),
            ("complex64", "[0, 1e39]"),
            ("complex128", "[1e400, 0]"),
        ],
    )
    def test_a_number_out_of_range_is_not_representable_and_never_malformed(self, dtype: str, text: str) -> None:
        part = "" if not text.startswith("[") else "/1" if "0, 1e39" in text else "/0"
        refused_items(dtype, f"[{text}]", VALUE, f"/data/values/0{part}", "[1]")

    def test_float32_is_rounded_once_from_binary64(self) -> None:
        text = "7.038531e-26"
        assert made("float32", f"[{text}]").array.view(np.uint32)[0] == np.float32(float(text)).view(np.uint32)

    @for_each("dtype", [*FLOATS, "complex64", "complex128"])
    @for_each("text", ["-0", "-0.0", "-0e0", "-0.000", "-1e-999"])
    def test_minus_zero_keeps_its_sign(self, dtype: str, text: str) -> None:
        data = made(dtype, f"[[{text}, {text}]]" if dtype.startswith("complex") else f"[{text}]")
        parts = (
            data.array.view(DTYPES[dtype].numpy)
            if dtype in FLOATS
            else data.array.view(f"f{data.dtype.item_size // 2}")
        )
        assert all(float(part) == 0.0 and math.copysign(1, float(part)) == -1 for part in parts)

    @pytest.mark.parametrize("dtype", INTEGERS)
    def test_minus_zero_is_zero_in_integers(self, dtype: str) -> None:
        assert listed(dtype, "[-0, -0.0, -0e5]") == [0, 0, 0]

    @for_each("dtype", [name for name in DTYPES if name != "string"])
    @for_each("text", ["null", '"x"', "{}", '{"a": [1, 2]}'])
    def test_a_json_value_of_another_sort_is_not_representable(self, dtype: str, text: str) -> None:
        if dtype.startswith("complex"):
            refused_items(dtype, f"[[0, {text}]]", VALUE, "/data/values/0/1")
        else:
            good = "true" if dtype == "bool" else "1"
            error = refused_items(dtype, f"[{good}, {text}]", VALUE, "/data/values/1")
            assert error.places[0].value == ("x" if text == '"x"' else None)

    def test_a_flat_value_has_the_position_that_the_shape_gives_it(self) -> None:
        (place,) = refused_items("uint8", "[1, 2, 3, 4, 256, 5]", VALUE, "/data/values/4", "[2, 3]").places
        assert (place.position, place.value) == ((1, 1), 256)


class TestStrings:
    def test_a_string_over_the_limit(self) -> None:
        body = request(tensor("string", json.dumps(["é" * 50, "é" * 51]), "[2, 1]"))
        error = refused(body, "limit_exceeded", "/data/values/1", string_bytes=100)
        assert error.facts == {"limit": "string_bytes", "maximum": 100}
        assert error.places[0].position == (1, 0)


class TestNesting:
    @pytest.mark.parametrize("shape", [None, "[2, 3]"])
    def test_nested_lists_give_the_shape_or_equal_it(self, shape: str | None) -> None:
        data = made("int32", "[[1, 2, 3], [4, 5, 6]]", shape)
        assert (data.shape, data.form, data.array.tolist()) == ((2, 3), "nested", [1, 2, 3, 4, 5, 6])
        assert data.locate(4) == "/data/values/1/1"

    @pytest.mark.parametrize("values", ["7", "[7]"])
    def test_rank_0(self, values: str) -> None:
        data = made("int8", values, "[]")
        assert (data.shape, data.array.tolist()) == ((), [7])
        assert data.locate(0) == ("/data/values" if values == "7" else "/data/values/0")

    def test_a_bad_bare_value_is_named_without_a_number(self) -> None:
        (place,) = refused_items("int8", "300", VALUE, "/data/values").places
        assert (place.position, place.value) == ((), 300)

    @for_each("shape", ["[0]", "[0, 3]", "[3, 0]", "[2, 0, 5]", f"[{2**40}, {2**40}, 0]", f"[0, {10**30}]"])
    @for_each("dtype", ["int8", "complex128", "string", "bool"])
    def test_an_empty_list_for_any_shape_of_size_zero(self, shape: str, dtype: str) -> None:
        data = made(dtype, "[ ]", shape)
        assert (list(data.shape), data.array.size) == (json.loads(shape), 0)

    @pytest.mark.parametrize(
        ("values", "shape"), [("[[], []]", (2, 0)), ("[]", (0,)), ("[[[], [], []]]", (1, 3, 0)), ("[[]]", (1, 0))]
    )
    def test_empty_lists_nested_properly(self, values: str, shape: tuple[int, ...]) -> None:
        for given in (None, str(list(shape))):
            assert made("float32", values, given).shape == shape
            assert made("complex64", values, given).shape == shape
        assert made("int8", values, str([*shape, 4])).shape == (*shape, 4)

    def test_rank_beyond_the_limit_is_for_others_to_judge(self) -> None:
        assert made("int8", "[" * 100 + "1" + "]" * 100).shape == (1,) * 100
        assert made("int8", "[1]", str([1] * 1000)).shape == (1,) * 1000

    def test_a_shape_of_impossible_size_is_compared_without_being_worked_out(self) -> None:
        refused_items("int8", "[1]", COUNT, "/data/values", "[" + ",".join(["9" * 4000] * 7) + "]")


class TestComplex:
    @pytest.mark.parametrize(("values", "shape"), [("[1, 2]", None), ("[1, 2]", "[]"), ("[[1, 2]]", "[]")])
    def test_rank_0_is_a_pair_or_a_list_of_it(self, values: str, shape: str | None) -> None:
        data = made("complex64", values, shape)
        assert (data.shape, data.array.tolist()) == ((), [1 + 2j])

    def test_the_part_that_is_wrong_is_named(self) -> None:
        (place,) = refused_items("complex64", '[[1, 2], [3, "x"]]', VALUE, "/data/values/1/1", "[2]").places
        assert (place.position, place.value) == ((1,), "x")
        refused_items("complex64", "[[[1, 2], [null, 3]]]", VALUE, "/data/values/0/1/0")


class TestFields:
    @for_each(
        ("text", "value"),
        [
            ("1", 1),
            ("-3", -3),
            ("1.0", 1),
            ("1e2", 100),
            ("12.5e1", 125),
            ("-0", 0),
            (str(2**63), 2**63),
            (str(-(2**64) - 1), -(2**64) - 1),
            ("1" + "0" * 50, 10**50),
            ("123456789012345678901.0", 123456789012345678901),
            ("1e400", 10**400),
            ("1e999999999999999999999", 10**4000),
            ("-" + "9" * 5000, -(10**4000)),
            ("0e999999999", 0),
        ],
    )
    @for_each(("operator", "name"), [("gathernd", "batch_dims"), ("gather", "axis")])
    def test_batch_dims_and_axis_are_any_integer(self, operator: str, name: str, text: str, value: int) -> None:
        assert call(request(rest=f', "{name}": {text}'), operator).parameters == (value,)

    def test_escapes_in_names_are_read(self) -> None:
        body = request().replace(b'"values"', b'"v\\u0061lues"').replace(b'"dtype"', b'"\\u0064type"')
        assert body.count(b"\\u0061") == 2
        assert call(body).indices.shape == (1, 1)

    def test_fields_of_more_than_a_megabyte_are_over_a_limit(self) -> None:
        body = request(rest=f', "x": "{"y" * envelope.MAX_BYTES}"')
        error = refused(body, "limit_exceeded")
        assert error.facts == {"limit": "fields_bytes", "maximum": envelope.MAX_BYTES}
