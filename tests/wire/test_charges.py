"""What the items of a request take is told before it is taken, and what the text of an answer will take is foreseen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pybase64
import pytest

from app.errors import GatherError
from app.spec.dialects import DIALECTS
from app.tensors.dtypes import DTYPES
from app.tensors.limits import Limits
from app.tensors.tensor import Tensor
from app.wire import native_json, oip_v2
from app.wire.json_write import likely_size, values_text
from app.wire.oip_v2 import Model
from app.wire.packed import STRING_BYTES

pytestmark = pytest.mark.usefixtures("compiled")

NUMBERS = [name for name, dtype in DTYPES.items() if dtype.kind in ("int", "uint", "float")]
INDICES = {"dtype": "int64", "shape": [1, 1], "values": [0]}
MODEL = Model("gathernd", "gathernd", tuple(DIALECTS["gathernd"]))


def charged(data: dict[str, Any]) -> tuple[int, int]:
    """What was told for `data` when a request with it was read, and the bytes that it takes."""
    told: list[int] = []
    body = json.dumps({"data": data, "indices": INDICES}).encode()
    call, _ = native_json.read_call(body, "gathernd", tuple(DIALECTS["gathernd"]), Limits(), told.append)
    assert isinstance(call.data, Tensor)
    assert told[-1] == 8  # the one index
    return sum(told[:-1]), call.data.array.nbytes


@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_are_told_by_their_shape(dtype: str) -> None:
    size = DTYPES[dtype].item_size
    assert charged({"dtype": dtype, "shape": [5, 20], "values": [1] * 100}) == (100 * size, 100 * size)


def test_complex_items_and_nested_lists_are_told() -> None:
    assert charged({"dtype": "complex64", "shape": [50], "values": [[1, 2]] * 50}) == (400, 400)
    assert charged({"dtype": "int32", "shape": [5, 4], "values": [[1, 2, 3, 4]] * 5}) == (80, 80)


@pytest.mark.parametrize("values", [[1] * 100, [[1, 2, 3, 4]] * 25, [[[1]]] * 100, [], 7])
def test_where_no_shape_is_given_the_commas_tell(values: Sequence[Any]) -> None:
    told, taken = charged({"dtype": "int64", "values": values})
    assert taken <= told <= max(taken, 8)


def test_strings_are_told_as_the_objects_that_they_become() -> None:
    told, _ = charged({"dtype": "string", "shape": [1000], "values": ["ab"] * 1000})
    assert told >= 1000 * (STRING_BYTES + 2)
    framed = b"".join(len(text).to_bytes(4, "little") + text for text in [b"ab"] * 1000)
    told, _ = charged({"dtype": "string", "shape": [1000], "base64": pybase64.b64encode(framed).decode()})
    assert told >= 1000 * (STRING_BYTES + 2)


def test_base64_is_told_by_its_length() -> None:
    raw = np.arange(999, dtype=np.float32).tobytes()
    told, taken = charged({"dtype": "float32", "shape": [999], "base64": pybase64.b64encode(raw).decode()})
    assert taken <= told <= taken + 3


def test_what_the_charge_raises_is_raised_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> None:
        raise GatherError("overloaded", f"no room for {size}")

    def made(*_: object) -> None:
        raise AssertionError("made although refused")

    monkeypatch.setattr("app.wire.json_values.read_elements", made)
    body = json.dumps({"data": {"dtype": "int8", "shape": [3], "values": [1, 2, 3]}, "indices": INDICES}).encode()
    with pytest.raises(GatherError, match="no room for 3"):
        native_json.read_call(body, "gathernd", tuple(DIALECTS["gathernd"]), Limits(), full)
    inputs = [
        {"name": "data", "datatype": "INT8", "shape": [3], "data": [1, 2, 3]},
        {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [1]},
    ]
    with pytest.raises(GatherError, match="no room for 3"):
        oip_v2.read_request(json.dumps({"inputs": inputs}).encode(), None, MODEL, Limits(), full)


def test_strings_behind_the_json_are_told() -> None:
    told: list[int] = []
    framed = b"\2\0\0\0ab" * 100
    inputs = [
        {"name": "data", "datatype": "BYTES", "shape": [100], "parameters": {"binary_data_size": len(framed)}},
        {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [1]},
    ]
    text = json.dumps({"inputs": inputs}).encode()
    oip_v2.read_request(text + framed, len(text), MODEL, Limits(), told.append)
    assert told[0] >= 100 * (STRING_BYTES + 2)


@pytest.mark.parametrize("dtype", [*NUMBERS, "bool", "complex64", "complex128", "string"])
def test_the_text_of_an_answer_is_foreseen_within_a_factor_of_three(dtype: str) -> None:
    known = DTYPES[dtype]
    rng = np.random.default_rng(1)
    if dtype == "string":
        array: Any = np.array(["some text"] * 3000, object)
    elif known.kind in ("float", "complex"):
        array = rng.random(3000).astype(known.numpy)
    else:
        array = rng.integers(0, 2 if dtype == "bool" else 127, 3000).astype(known.numpy)
    tensor = Tensor(known, (3000,), array)
    size = len(values_text(tensor))
    assert size / 3 <= likely_size(tensor) <= 3 * size
