"""The traps that well-known runtimes fell into, each by name: small requests, and exactly what each must answer."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.for_each import for_each
from tests.http.forms import int64, tensor


def floats(*shape: int) -> dict[str, Any]:
    count = 1
    for size in shape:
        count *= size
    return tensor("float32", shape, list(range(count)))


def ask(client: httpx.Client, data: Any, indices: Any, path: str = "/gathernd", **fields: Any) -> httpx.Response:
    return client.post(path, json={"data": data, "indices": indices, **fields})


def refused(answer: httpx.Response, code: str, status: int = 422) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    assert body["code"] == code, answer.text
    return body


def output(answer: httpx.Response) -> tuple[list[int], list[Any]]:
    assert answer.status_code == 200, answer.text
    made = answer.json()["output"]
    return made["shape"], made["values"]


@pytest.mark.parametrize("nesting", [[[], []], [[[], [], []], [[], [], []]], []])
def test_zero_size_values_may_be_nested_or_flat(every_client: httpx.Client, nesting: list[Any]) -> None:
    shape = [2, 0] if nesting == [[], []] else [2, 3, 0]
    answer = ask(every_client, tensor("float32", shape, nesting), int64([1, 1], [1]))
    assert output(answer) == ([1, *shape[1:]], [])


def test_a_zero_beside_dimensions_that_fit_is_served(every_client: httpx.Client) -> None:
    assert output(ask(every_client, floats(2**31, 0, 2**20), int64([1, 1], [2**31 - 1]))) == ([1, 0, 2**20], [])


def test_an_output_of_too_many_elements_but_no_bytes_is_decided_from_the_shapes(every_client: httpx.Client) -> None:
    answer = ask(every_client, floats(1, 0), int64([2, 1], [0, 0]))
    assert output(answer) == ([2, 0], [])
    body = refused(ask(every_client, tensor("bool", [1, 2**40, 0], []), int64([3, 2**40, 0, 1], [])), "limit_exceeded")
    assert body["limit"] == "bytes"


@for_each("value", ["true", "false", "null", "0.5", "-0.5", "1e-400", "1.0e-1", '"0"', "[0]", "{}"])
@for_each(("path", "name"), [("/gathernd", "batch_dims"), ("/gather", "axis")])
def test_a_bool_or_a_fraction_is_no_integer_parameter(
    every_client: httpx.Client, value: str, path: str, name: str
) -> None:
    sent = json.dumps({"data": floats(2), "indices": int64([1, 1], [0]), name: "here"}).replace('"here"', value)
    body = refused(every_client.post(path, content=sent), "invalid_field")
    assert body["errors"] == [{"pointer": f"/{name}"}]


@pytest.mark.parametrize("value", ["0", "-0", "0.0", "0e5", "0E-999999999999", "0.000"])
def test_an_integer_parameter_may_be_written_as_any_integral_number(every_client: httpx.Client, value: str) -> None:
    sent = json.dumps({"data": floats(2), "indices": int64([1, 1], [1]), "batch_dims": "here"})
    assert output(every_client.post("/gathernd", content=sent.replace('"here"', value))) == ([1], [1.0])
