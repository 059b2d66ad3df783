"""What the items of a request take is charged before it is taken, and what the text of an answer is foreseen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pybase64
import pytest
from numpy.typing import NDArray

from app.errors import GatherError
from app.formats.json.read_request import read_request
from app.formats.json.write_answer import write_answer
from app.formats.oip.infer_document import Model
from app.formats.oip.read_body import read_body
from app.formats.safetensors.read_request import read_request as read_safetensors
from app.json_text.read_elements import read_elements
from app.json_text.write_values import most_text, values_text
from app.memory.budget import Memory
from app.operators.registry import GRADIENTS, OPERATORS
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer
from app.tensors.little_endian_items import packed_bytes
from app.tensors.lookup_call import LOOKUP_SIGNATURE
from app.tensors.shape_limits import Limits
from app.tensors.string_frames import ROOM
from app.tensors.string_tensor import PackedStrings
from app.tensors.tensor import Tensor
from tests.for_each import for_each
from tests.strings import framed, items, packed
from tests.told_memory import ToldMemory

pytestmark = pytest.mark.usefixtures("compiled")

NUMBERS = [name for name, dtype in DTYPES.items() if dtype.kind in ("int", "uint", "float")]
INDICES = {"dtype": "int64", "shape": [1, 1], "values": [0]}
MODEL = Model("gathernd", OPERATORS["gathernd"].signature)


def charged(data: dict[str, Any]) -> tuple[int, int]:
    """What was charged for `data` when a request with it was read, and the bytes that it takes."""
    charges: list[int] = []
    body = json.dumps({"data": data, "indices": INDICES}).encode()
    call, _ = read_request(body, b"", OPERATORS["gathernd"].signature, Limits(), ToldMemory(charges.append))
    assert isinstance(call.data, Tensor)
    assert charges[-1] == 8  # the one index
    return sum(charges[:-1]), call.data.array.nbytes


@for_each("dtype", NUMBERS)
def test_numbers_are_told_by_their_shape(dtype: str) -> None:
    size = DTYPES[dtype].item_size
    assert charged({"dtype": dtype, "shape": [5, 20], "values": [1] * 100}) == (100 * size, 100 * size)


def test_complex_items_and_nested_lists_are_told() -> None:
    assert charged({"dtype": "complex64", "shape": [50], "values": [[1, 2]] * 50}) == (400, 400)
    assert charged({"dtype": "int32", "shape": [5, 4], "values": [[1, 2, 3, 4]] * 5}) == (80, 80)


@pytest.mark.parametrize("values", [[1] * 100, [[1, 2, 3, 4]] * 25, [[[1]]] * 100, [], 7])
def test_where_no_shape_is_given_the_commas_tell(values: Sequence[Any]) -> None:
    charges, taken = charged({"dtype": "int64", "values": values})
    assert taken <= charges <= max(taken, 8)


def test_strings_are_told_as_their_frames_and_where_those_begin() -> None:
    values = ["ab"] * 1000
    charges, starts = charged({"dtype": "string", "shape": [1000], "values": values})
    span = len(json.dumps(values))
    assert starts == 8000
    assert charges == 8000 + span + 1000 + 8  # a frame has a byte more beside its text than JSON, at least
    raw = framed(values)
    charges, starts = charged({"dtype": "string", "shape": [1000], "base64": pybase64.b64encode(raw).decode()})
    assert charges == len(raw) + starts


def test_of_strings_without_a_shape_the_commas_tell() -> None:
    values = ["ab"] * 1000
    charges, _ = charged({"dtype": "string", "values": values})
    assert charges == charged({"dtype": "string", "shape": [1000], "values": values})[0]
    charges, _ = charged({"dtype": "string", "values": [",,,,"]})
    assert charges == 5 * 8 + len('[",,,,"]') + 5 + 8


def test_base64_is_told_by_its_length() -> None:
    raw = np.arange(999, dtype=np.float32).tobytes()
    charges, taken = charged({"dtype": "float32", "shape": [999], "base64": pybase64.b64encode(raw).decode()})
    assert taken <= charges <= taken + 3


def test_what_the_charge_raises_is_raised_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int) -> None:
        raise GatherError("overloaded", f"no room for {size}")

    def made(*_: object) -> None:
        raise AssertionError("made although refused")

    monkeypatch.setattr(read_elements, "run", made)
    body = json.dumps({"data": {"dtype": "int8", "shape": [3], "values": [1, 2, 3]}, "indices": INDICES}).encode()
    with pytest.raises(GatherError, match="no room for"):
        read_request(body, b"", OPERATORS["gathernd"].signature, Limits(), ToldMemory(full))
    inputs = [
        {"name": "data", "datatype": "INT8", "shape": [3], "data": [1, 2, 3]},
        {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [1]},
    ]
    with pytest.raises(GatherError, match="no room for 3"):
        read_body((json.dumps({"inputs": inputs}).encode(), None), MODEL, Limits(), ToldMemory(full))


def test_strings_behind_the_json_are_told() -> None:
    charges: list[int] = []
    raw = framed(["ab"] * 100)
    inputs = [
        {"name": "data", "datatype": "BYTES", "shape": [100], "parameters": {"binary_data_size": len(raw)}},
        {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [1]},
    ]
    text = json.dumps({"inputs": inputs}).encode()
    read_body((text + raw, len(text)), MODEL, Limits(), ToldMemory(charges.append))
    assert charges == [100 * 8, 8]


class Account(Memory):
    """Counts what is charged, and what has been given back."""

    def __init__(self) -> None:
        self.held = self.most = 0

    def charge(self, size: int) -> None:
        self.held += size
        self.most = max(self.most, self.held)

    def adjust(self, planned: int, size: int) -> None:
        self.held += size - planned


def widest(dtype: str, count: int) -> NDArray[Any]:
    """Items whose text is as long as it can be."""
    known = DTYPES[dtype]
    if known.kind in ("int", "uint"):
        return np.full(count, known.low or known.high, known.numpy)
    if known.kind == "bool":
        return np.zeros(count, np.bool_)
    if known.kind == "complex":
        return np.full(count, complex(-1.2345678901234567e-300 if dtype == "complex128" else -1.2345678e-30, -np.inf))
    return np.array([-1.2345678901234567e-300, -np.inf, -1.2345678e-30, np.nan] * (count // 4)).astype(known.numpy)


@for_each("encoding", ["values", "base64"])
@for_each("count", [4, 3000, 70_000])
@for_each("dtype", [*NUMBERS, "bool", "complex64", "complex128", "string"])
def test_the_text_of_an_answer_is_charged_before_it_is_made(dtype: str, count: int, encoding: Any) -> None:
    known = DTYPES[dtype]
    if dtype == "string":
        output: Tensor = packed(["\0" * 50, "plain", "\N{GRINNING FACE}", "é" * 30] * (count // 4))
    else:
        output = Tensor(known, (count,), widest(dtype, count).astype(known.numpy))
    answer = Answer({"output": output}, "onnx-13", "cpu")
    account = Account()
    found = write_answer(answer, encoding, account)
    size = sum(map(len, found))
    assert size - 200 <= account.held <= size + 64
    assert account.most <= 2 * account.held + 3_000_000
    whole = b"".join(found)
    plain = write_answer(answer, encoding)
    assert whole == b"".join(plain)
    assert json.loads(whole)["output"]["shape"] == [count]


@for_each("dtype", [*NUMBERS, "bool", "complex64", "complex128"])
def test_no_item_has_a_longer_text_than_is_charged(dtype: str) -> None:
    known = DTYPES[dtype]
    items = widest(dtype, 4).astype(known.numpy)
    (text,) = values_text(Tensor(known, (4,), items))
    assert len(text) <= 4 * most_text(known)


@for_each("text", ["", "a", "abc" * 20, "é", "żółw" * 9, "a" * 99 + "\N{GRINNING FACE}"])
@for_each("how", ["plain", "escaped", "base64", "behind"])
def test_strings_are_charged_as_the_memory_that_they_take(text: str, how: str) -> None:
    count = 2000
    texts = [text + str(number) for number in range(count)]
    charges: list[int] = []
    raw = framed(texts)
    if how == "behind":
        inputs = [
            {"name": "data", "datatype": "BYTES", "shape": [count], "parameters": {"binary_data_size": len(raw)}},
            {"name": "indices", "datatype": "INT64", "shape": [1, 1], "data": [1]},
        ]
        head = json.dumps({"inputs": inputs}).encode()
        call = read_body((head + raw, len(head)), MODEL, Limits(), ToldMemory(charges.append)).call
    else:
        data = {"dtype": "string", "shape": [count]}
        data |= {"base64": pybase64.b64encode(raw).decode()} if how == "base64" else {"values": texts}
        body = json.dumps({"data": data, "indices": INDICES}, ensure_ascii=how == "escaped").encode()
        call, _ = read_request(body, b"", OPERATORS["gathernd"].signature, Limits(), ToldMemory(charges.append))
    assert isinstance(call.data, PackedStrings)
    assert items(call.data).tolist() == texts
    octets = 0 if how == "behind" else call.data.octets.nbytes  # else those of the body
    assert sum(charges) >= call.data.array.nbytes + octets + call.indices.array.nbytes


@pytest.mark.parametrize("texts", [["x" * 300] * 9, ["\0"] * 999, [], [""]])
def test_an_answer_of_strings_is_charged_exactly_and_before_it_is_made(texts: list[str]) -> None:
    def full(size: int) -> None:
        raise GatherError("overloaded", f"no room for {size}")

    strings = packed(texts)
    for write, size in (
        (lambda memory: values_text(strings, memory), len(json.dumps(texts, separators=(",", ":")))),
        (lambda memory: packed_bytes(strings, memory), len(framed(texts))),
    ):
        account = Account()
        write(account)
        assert account.held == account.most == size + ROOM
        account.charge = full  # type: ignore[method-assign]
        with pytest.raises(GatherError, match=f"no room for {size + ROOM}"):
            write(account)


def test_a_tensor_behind_the_json_that_is_not_aligned_is_charged_with_its_copy() -> None:
    charges: list[int] = []
    inputs = [
        {"name": "data", "datatype": "INT8", "shape": [3], "parameters": {"binary_data_size": 3}},
        {"name": "indices", "datatype": "INT64", "shape": [900, 1], "parameters": {"binary_data_size": 7200}},
    ]
    head = json.dumps({"inputs": inputs}).encode()
    read_body((head + bytes(7203), len(head)), MODEL, Limits(), ToldMemory(charges.append))
    assert charges == [7200]


def test_tensors_of_safetensors_that_are_not_aligned_are_charged_with_their_copies() -> None:
    entries = {
        "data": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]},
        "indices": {"dtype": "I64", "shape": [900], "data_offsets": [1, 7201]},
        "updates": {"dtype": "I64", "shape": [900], "data_offsets": [7201, 14401]},
    }
    text = json.dumps(entries).encode()
    body = len(text).to_bytes(8, "little") + text + bytes(14401)
    charges: list[int] = []
    read_safetensors(body, b"", OPERATORS["scatter_elements"].signature, Limits(), ToldMemory(charges.append))
    assert charges[-2:] == [7200, 7200]


@for_each("encoding", ["values", "base64"])
def test_the_arrays_of_scatters_gradients_and_lookups_are_told(encoding: str) -> None:
    def told(array: NDArray[Any]) -> dict[str, Any]:
        items = array.tolist() if encoding == "values" else pybase64.b64encode(array.tobytes()).decode()
        return {"dtype": array.dtype.name, "shape": array.shape, encoding: items}

    indices, floats = told(np.arange(1000)), told(np.ones(1000))
    feature = {"tensor": "a", "pooling": "sum", "indices": indices, "offsets": told(np.arange(0, 1000, 4))}
    gradient = {"data_shape": [9], "indices": indices, "grad_output": floats}
    for signature, document, sizes in (
        (OPERATORS["scatter_elements"].signature, {"data": floats, "indices": indices, "updates": floats}, [8000] * 3),
        (GRADIENTS["gather_backward"].signature, gradient, [8000] * 2),
        (LOOKUP_SIGNATURE, {"features": [feature]}, [8000, 2000]),
    ):
        charges: list[int] = []
        read_request(json.dumps(document).encode(), b"", signature, Limits(), ToldMemory(charges.append))
        for size in sizes:
            found = next(one for one in charges if size <= one <= size + 3)
            charges.remove(found)


def test_base64_with_escapes_is_charged_with_its_copies() -> None:
    text = pybase64.b64encode(bytes([255]) * 3000).decode()
    assert "/" in text
    body = json.dumps({"data": {"dtype": "uint8", "shape": [3000], "base64": text}, "indices": INDICES})
    charges: list[int] = []
    escaped = body.replace("/", "\\/").encode()
    read_request(escaped, b"", OPERATORS["gathernd"].signature, Limits(), ToldMemory(charges.append))
    assert sum(charges) >= 3000 + 2 * len(text)
