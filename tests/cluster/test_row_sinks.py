"""What is read of a shard's JSON answer, and charged."""

from __future__ import annotations

import orjson
import pytest

from app.cluster.router.row_sinks import BadAnswer, WholeBody
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
