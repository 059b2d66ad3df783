"""What the items of a request take is charged before it is taken, and what the text of an answer is foreseen."""

from __future__ import annotations

import json
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
from app.json_text.write_values import values_text
from app.memory.budget import Memory
from app.operators.registry import OPERATORS
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer
from app.tensors.little_endian_items import packed_bytes
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
def test_no_more_is_charged_than_numbers_take(dtype: str) -> None:
    size = 100 * DTYPES[dtype].item_size
    assert charged({"dtype": dtype, "shape": [5, 20], "values": [1] * 100}) == (size, size)
    charges, taken = charged({"dtype": dtype, "shape": [100], "base64": pybase64.b64encode(bytes(size)).decode()})
    assert taken <= charges <= taken + 3


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
