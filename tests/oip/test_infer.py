"""What an infer request may say beside what the conformance table asks."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from tests.for_each import for_each
from tests.oip.bodies import Array, example, output, part, refused, request, same

INFER = "/v2/models/gathernd/infer"
INDICES = np.array([[1], [-3], [0]], np.int64)
DATA: dict[str, Array] = {
    "FP64": np.array([[0.1, -0.0], [1.7e308, 5e-324], [1, 2]], np.float64),
    "BYTES": np.array([["", "ä"], ["\0", "日本"], ['"\\', "z" * 300]], object),
}


@for_each("order", [(0, 1), (1, 0)])
@for_each("datatype", DATA)
@for_each("binary", [(True, False), (False, True)])
def test_inputs_come_in_any_order_each_in_json_or_behind_it(
    client: httpx.Client, order: tuple[int, int], datatype: str, binary: tuple[bool, bool]
) -> None:
    parts = [
        part("data", DATA[datatype], datatype, binary=binary[0]),
        part("indices", INDICES, "INT64", binary=binary[1]),
    ]
    content, headers = request([parts[number] for number in order])
    _, found = output(client.post(INFER, content=content, headers=headers))
    assert same(found, DATA[datatype][[1, 0, 0]])


def test_a_string_beyond_the_limit(client: httpx.Client) -> None:
    for size, code in ((2**24, None), (2**24 + 1, "limit_exceeded")):
        data = part("data", np.array(["", "x" * size], object), "BYTES", binary=True)
        content, headers = request([data, part("indices", np.array([[0]]), "INT64")])
        answer = client.post(INFER, content=content, headers=headers)
        if code is None:
            assert answer.status_code == 200
        else:
            refused(answer, code, "/inputs/0")


@pytest.mark.parametrize(
    ("accept", "encoding"),
    [
        ("gzip", "gzip"), ("deflate", "deflate"), ("gzip, deflate", None), ("gzip, deflate, br, zstd", None),
        ("identity", None), ("*", None), ("br", None), ("gzip;q=1", None), ("", None),
    ],
)  # fmt: skip
def test_an_answer_is_compressed_for_exactly_one_known_encoding(
    client: httpx.Client, accept: str, encoding: str | None
) -> None:
    body = example(parameters={"binary_data_output": True})
    answer = client.post(INFER, json=body, headers={"accept-encoding": accept})
    assert answer.headers.get("content-encoding") == encoding
    _, found = output(answer)
    assert same(found, np.array([0, 3], np.int32))
