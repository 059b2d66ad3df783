"""What the items of a request take is charged before it is taken, and what the text of an answer is foreseen."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.errors import GatherError
from app.formats.json.write_answer import write_answer
from app.json_text.write_values import values_text
from app.memory.budget import Memory
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer
from app.tensors.little_endian_items import packed_bytes
from app.tensors.string_frames import ROOM
from app.tensors.tensor import Tensor
from tests.for_each import for_each
from tests.strings import framed, packed

pytestmark = pytest.mark.usefixtures("compiled")

NUMBERS = [name for name, dtype in DTYPES.items() if dtype.kind in ("int", "uint", "float")]


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
