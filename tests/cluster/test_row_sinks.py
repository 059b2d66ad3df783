"""What is read of a shard's answer: JSON, which is charged, and rows with marks of the keys that were found."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from app.cluster.router.row_sinks import BadAnswer, WholeBody, WholeTensors
from app.formats.safetensors.header import write_headers
from app.tensors.dtypes import DTYPES
from tests.told_memory import ToldMemory

ETAG = '"content-7"'


def body_of(text: bytes) -> WholeBody:
    body = WholeBody(1 << 20)
    body.begin(len(text))
    body.take(memoryview(text))
    return body


@pytest.mark.parametrize(
    ("text", "etag"),
    [
        (orjson.dumps({"output": {"base64": "AAAA"}, "device": "cpu", "data_etag": ETAG, "version": 1}), ETAG),
        (orjson.dumps({"output": {"base64": "A" * 5000}, "data_etag": ETAG}), ETAG),
        (orjson.dumps({"data_etag": ETAG, "output": {"base64": "A" * 5000}}), ETAG),
        (orjson.dumps({"data_etag": "other", "output": {"data_etag": ETAG}}), "other"),
        (orjson.dumps({"output": {"base64": "AAAA"}}), None),
        (orjson.dumps({"data_etag": 1}), None),
    ],
)
def test_the_etag_of_an_answer_wherever_it_stands(text: bytes, etag: str | None) -> None:
    assert body_of(text).etag() == etag


def test_the_etag_behind_many_items_is_found_without_reading_them(monkeypatch: pytest.MonkeyPatch) -> None:
    text = orjson.dumps({"output": {"base64": "A" * 100_000}, "dialect": "onnx-13", "data_etag": ETAG, "version": 3})
    body = body_of(text)
    monkeypatch.delattr(WholeBody, "document")
    assert body.etag() == ETAG


def test_what_is_no_json_has_none() -> None:
    with pytest.raises(BadAnswer):
        body_of(b"<html>").etag()


def test_the_text_that_a_body_is_read_into_is_charged_too() -> None:
    charged: list[int] = []
    WholeBody(1000, ToldMemory(charged.append)).begin(600)
    assert sum(charged) == 1200


ROWS, FOUND = np.arange(6, dtype=np.float32), np.array([True, False, True])


def answer(rows: int = 3, found: str = "found", dtype: str = "float32") -> bytes:
    output = DTYPES[dtype], (rows, 6 // rows), ROWS.nbytes
    return write_headers({"output": output, found: (DTYPES["bool"], (3,), 3)}) + ROWS.tobytes() + FOUND.tobytes()


def sink_of(rows: NDArray[np.uint8], found: NDArray[np.bool_]) -> WholeTensors:
    return WholeTensors({"output": (DTYPES["float32"], (3, 2), rows), "found": (DTYPES["bool"], (3,), found)})


@pytest.mark.parametrize("step", [1, 7, 100, 1000])
def test_rows_and_marks_of_keys_get_to_their_places_in_pieces_of_any_size(step: int) -> None:
    rows, found = np.zeros(6, np.float32), np.zeros(3, np.bool_)
    sink = sink_of(rows.view(np.uint8), found)
    for body in (answer()[:-1], answer()):  # the first replica breaks off
        sink.begin(len(answer()))
        left = b""
        for place in range(0, len(body), step):
            left += body[place : place + step]
            left = left[sink.take(memoryview(left)) :]
        assert not left
    sink.finish()
    assert np.array_equal(rows, ROWS)
    assert np.array_equal(found, FOUND)


@pytest.mark.parametrize("body", [answer(2), answer(found="marks"), answer(dtype="int32"), answer()[:-1], answer() * 2])
def test_an_answer_of_other_tensors_is_refused(body: bytes) -> None:
    sink = sink_of(np.zeros(24, np.uint8), np.zeros(3, np.bool_))
    sink.begin(len(body))
    with pytest.raises(BadAnswer):
        sink.take(memoryview(body))
