"""Lookups of the inference protocol: what of their reading and writing is not for the event loop."""

from __future__ import annotations

import json

import numpy as np
import pytest

from app.formats.body_formats import LONG_BINARY, LONG_LOOKUP
from app.formats.oip.infer_answer import is_long_answer
from app.formats.oip.infer_document import LOOKUP_MODEL, AskedInference
from app.formats.oip.read_body import is_long, read_body
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer, TableRead
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from tests.strings import packed

pytestmark = pytest.mark.usefixtures("compiled")
FLOATS = Tensor(DTYPES["float32"], (100_000,), np.zeros(100_000, np.float32))
STRINGS = packed(["some text"] * 20_000)
SHORT = packed(["some text"] * 20)


def asked(binary: bool, **members: object) -> AskedInference:
    one = {"name": "0.indices", "datatype": "INT64", "shape": [1], "data": [0]}
    lookup = json.dumps({"features": [{"tensor": "a"}]})
    body = {"inputs": [one], "parameters": {"lookup": lookup, "binary_data_output": binary}, **members}
    return read_body(json.dumps(body).encode(), None, LOOKUP_MODEL, Limits())


def test_long_json_and_many_items_are_read_elsewhere() -> None:
    assert not is_long(bytes(LONG_LOOKUP), None, LOOKUP_MODEL)
    assert is_long(bytes(LONG_LOOKUP + 1), None, LOOKUP_MODEL)
    assert not is_long(bytes(LONG_BINARY), 100, LOOKUP_MODEL)
    assert is_long(bytes(LONG_BINARY + 1), 100, LOOKUP_MODEL)  # items that are not aligned are copied
    assert is_long(bytes(LONG_BINARY), LONG_LOOKUP + 1, LOOKUP_MODEL)


@pytest.mark.parametrize(
    ("output", "binary", "long"),
    [(FLOATS, False, True), (FLOATS, True, False), (STRINGS, False, True), (STRINGS, True, True), (SHORT, True, False)],
)
def test_texts_and_strings_are_written_elsewhere(output: Tensor, binary: bool, long: bool) -> None:
    answer = Answer({"output": output}, "", tables=[TableRead("a", "e", 1)])
    assert is_long_answer(answer, asked(binary)) == long
    if output is FLOATS:  # where outputs are asked for one by one, some may be texts
        chosen = asked(binary, outputs=[{"name": "output", "parameters": {"binary_data": False}}])
        assert is_long_answer(answer, chosen)
