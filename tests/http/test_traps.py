"""The traps that well-known runtimes fell into, each by name: small requests, and exactly what each must answer."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.for_each import for_each
from tests.http.forms import int64, packed, tensor

HUGE = (2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 2**64 + 1, 10**30, 10**400)


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


@pytest.mark.parametrize("dialect", ["onnx-13", "onnx-12", "openvino-8"])
def test_batch_dims_that_differ_but_divide(every_client: httpx.Client, dialect: str) -> None:
    body = refused(
        ask(every_client, floats(2, 3), int64([4, 1], [0, 1, 2, 0]), batch_dims=1, dialect=dialect),
        "batch_shape_mismatch",
    )
    assert body["rule"]["dialect"] == dialect
    assert body["rule"]["clause"] == (None if dialect == "openvino-8" else "2")
    assert body["errors"] == [{"pointer": "/indices/shape", "value": 4, "axis": 0, "size": 2, "allowed": None}]


@pytest.mark.parametrize(("data", "indices"), [((1, 3), (3, 1)), ((3, 3), (1, 1))])
def test_batch_one_against_three_is_not_broadcast(
    every_client: httpx.Client, data: tuple[int, ...], indices: tuple[int, ...]
) -> None:
    answer = ask(every_client, floats(*data), int64(indices, [0] * indices[0]), batch_dims=1)
    refused(answer, "batch_shape_mismatch")


@for_each("huge", HUGE)
@for_each("sign", [1, -1])
def test_huge_batch_dims_are_out_of_range_and_not_wrapped(every_client: httpx.Client, huge: int, sign: int) -> None:
    answer = ask(every_client, floats(2, 2), int64([2, 1], [0, 1]), batch_dims=sign * huge)
    body = refused(answer, "batch_dims_out_of_range")
    (place,) = body["errors"]
    assert place["pointer"] == "/batch_dims"
    assert place["allowed"] == [0, 1]


@pytest.mark.parametrize("batch_dims", [-1, -2, 2, 3])
def test_a_negative_or_too_large_batch_dims_is_out_of_range(every_client: httpx.Client, batch_dims: int) -> None:
    answer = ask(every_client, floats(2, 2), int64([2, 1], [0, 1]), batch_dims=batch_dims)
    body = refused(answer, "batch_dims_out_of_range")
    assert body["errors"] == [{"pointer": "/batch_dims", "value": batch_dims, "allowed": [0, 1]}]


@for_each("huge", HUGE)
@for_each("sign", [1, -1])
def test_a_huge_axis_is_out_of_range_and_not_wrapped(every_client: httpx.Client, huge: int, sign: int) -> None:
    body = refused(ask(every_client, floats(2, 2), int64([1], [0]), "/gather", axis=sign * huge), "axis_out_of_range")
    (place,) = body["errors"]
    assert place["pointer"] == "/axis"
    assert place["allowed"] == [-2, 1]


@pytest.mark.parametrize("axis", [-3, 2])
@pytest.mark.parametrize("dialect", ["onnx-13", "onnx-11", "onnx-1"])
def test_an_axis_just_outside_is_out_of_range(every_client: httpx.Client, axis: int, dialect: str) -> None:
    answer = ask(every_client, floats(2, 2), int64([1], [0]), "/gather", axis=axis, dialect=dialect)
    refused(answer, "axis_out_of_range")


@for_each("axis", [-2, -1, 0, 1])
@for_each("dialect", ["onnx-13", "onnx-11", "onnx-1"])
def test_a_negative_axis_counts_from_the_back(every_client: httpx.Client, axis: int, dialect: str) -> None:
    answer = ask(every_client, floats(2, 2), int64([1], [1]), "/gather", axis=axis, dialect=dialect)
    assert output(answer) == (([1, 2], [2.0, 3.0]) if axis in (0, -2) else ([2, 1], [1.0, 3.0]))


@for_each("dialect", ["onnx-13", "onnx-12", "onnx-11", "openvino-8"])
@for_each("shape", [(0,), (3, 0), (0, 0)])
def test_index_tuples_of_length_zero_are_refused_in_every_dialect(
    every_client: httpx.Client, dialect: str, shape: tuple[int, ...]
) -> None:
    body = refused(ask(every_client, floats(2, 2), int64(shape, []), dialect=dialect), "index_depth_out_of_range")
    assert body["rule"]["clause"] == {"openvino-8": None, "onnx-11": "2"}.get(dialect, "4")
    assert body["errors"] == [{"pointer": "/indices/shape", "value": 0, "allowed": [1, 2]}]


def test_index_tuples_longer_than_the_data_axes_left_are_refused(every_client: httpx.Client) -> None:
    answer = ask(every_client, floats(2, 2), int64([2, 2], [0] * 4), batch_dims=1)
    assert refused(answer, "index_depth_out_of_range")["errors"][0]["allowed"] == [1, 1]


@pytest.mark.parametrize(
    "index", [2**62, -(2**62), 2**63 - 1, -(2**63), 2**60, 2**61, -(2**61), 2**32, -(2**32), 2**31]
)
def test_an_index_whose_product_with_the_stride_wraps_64_bits(every_client: httpx.Client, index: int) -> None:
    body = refused(ask(every_client, floats(3, 4), int64([1, 2], [index, 1])), "index_out_of_bounds")
    (place,) = body["errors"]
    assert place == {
        "pointer": "/indices/values/0",
        "position": [0, 0],
        "value": index,
        "axis": 0,
        "size": 3,
        "allowed": [-3, 2],
    }


@pytest.mark.parametrize(("index", "wrong"), [([0, 5], 1), ([0, -5], 1), ([2, -8], 1), ([-4, 11], 0), ([3, -4], 0)])
def test_an_inner_index_out_of_range_while_the_flat_offset_is_in_range(
    every_client: httpx.Client, index: list[int], wrong: int
) -> None:
    body = refused(ask(every_client, floats(3, 4), int64([1, 2], index)), "index_out_of_bounds")
    place = body["errors"][0]
    assert place["position"] == [0, wrong]
    assert place["axis"] == wrong
    assert place["allowed"] == ([-3, 2], [-4, 3])[wrong]
    assert body["total"] == sum(not -size <= value < size for value, size in zip(index, (3, 4), strict=True))


@pytest.mark.parametrize("index", [0, -1, 1])
def test_data_of_size_zero_with_indices(every_client: httpx.Client, index: int) -> None:
    body = refused(ask(every_client, floats(0), int64([1, 1], [index])), "index_out_of_bounds")
    assert body["errors"] == [
        {"pointer": "/indices/values/0", "position": [0, 0], "value": index, "axis": 0, "size": 0, "allowed": None}
    ]


def test_an_index_into_an_empty_axis_is_an_error_even_where_the_output_is_empty(every_client: httpx.Client) -> None:
    body = refused(ask(every_client, floats(0, 0), int64([1, 1], [0])), "index_out_of_bounds")
    assert body["errors"][0]["size"] == 0
    answer = ask(every_client, floats(2, 0, 0), int64([1, 2], [0, 0]))
    assert refused(answer, "index_out_of_bounds")["errors"][0]["axis"] == 1


def test_a_bad_index_is_an_error_even_where_the_slices_are_empty(every_client: httpx.Client) -> None:
    refused(ask(every_client, floats(2, 3, 0), int64([1, 1], [2])), "index_out_of_bounds")
    refused(ask(every_client, floats(0, 3), int64([1], [3]), "/gather", axis=1), "index_out_of_bounds")


def test_data_of_size_zero_without_indices(every_client: httpx.Client) -> None:
    assert output(ask(every_client, floats(0), int64([0, 1], []))) == ([0], [])
    assert output(ask(every_client, floats(0, 5), int64([0, 1], []))) == ([0, 5], [])
    assert output(ask(every_client, floats(0), int64([0], []), "/gather")) == ([0], [])


def test_zero_batches(every_client: httpx.Client) -> None:
    assert output(ask(every_client, floats(0, 3), int64([0, 1], []), batch_dims=1)) == ([0], [])
    assert output(ask(every_client, floats(0, 3, 4), int64([0, 5, 1], []), batch_dims=1)) == ([0, 5, 4], [])
    answer = ask(every_client, floats(0, 3), int64([1, 1], [0]), batch_dims=1)
    refused(answer, "batch_shape_mismatch")


def test_slices_of_length_zero(every_client: httpx.Client) -> None:
    assert output(ask(every_client, floats(2, 3, 0), int64([2, 1], [1, 0]))) == ([2, 3, 0], [])
    assert output(ask(every_client, floats(2, 0), int64([3], [1, 0, -1]), "/gather")) == ([3, 0], [])


@pytest.mark.parametrize("nesting", [[[], []], [[[], [], []], [[], [], []]], []])
def test_zero_size_values_may_be_nested_or_flat(every_client: httpx.Client, nesting: list[Any]) -> None:
    shape = [2, 0] if nesting == [[], []] else [2, 3, 0]
    answer = ask(every_client, tensor("float32", shape, nesting), int64([1, 1], [1]))
    assert output(answer) == ([1, *shape[1:]], [])


@for_each("shape", [[2**32, 2**32], [2**63, 2], [2**62, 4], [2**16] * 4, [2**33, 2**31], [10**30, 1]])
@for_each("role", ["data", "indices"])
def test_shape_products_that_overflow_do_not_match_few_values(
    every_client: httpx.Client, shape: list[int], role: str
) -> None:
    sent = {"data": floats(2, 2), "indices": int64([1, 1], [0])}
    for values in ([], [0]):
        body = every_client.post("/gathernd", json={**sent, role: {**sent[role], "shape": shape, "values": values}})
        assert refused(body, "element_count_mismatch")["errors"][0]["pointer"] == f"/{role}/values"


@pytest.mark.parametrize("shape", [[0, 2**63], [2**32, 2**32, 0], [2**62, 0, 4], [0, 10**30], [2**63 - 1, 0]])
def test_a_zero_hides_no_overflow_of_the_other_dimensions(every_client: httpx.Client, shape: list[int]) -> None:
    body = refused(ask(every_client, floats(*shape), int64([0, 1], [])), "limit_exceeded")
    assert body["limit"] in ("dimension", "bytes")
    assert body["maximum"] == 2**63 - 1


def test_a_zero_beside_dimensions_that_fit_is_served(every_client: httpx.Client) -> None:
    assert output(ask(every_client, floats(2**31, 0, 2**20), int64([1, 1], [2**31 - 1]))) == ([1, 0, 2**20], [])


@pytest.mark.parametrize("path", ["/gathernd", "/gather"])
def test_an_output_far_larger_than_the_request(every_client: httpx.Client, path: str) -> None:
    row = packed(tensor("float32", [1, 16384], [0.5] * 16384))
    shape = [16385, 1] if path == "/gathernd" else [16385]
    body = refused(ask(every_client, row, packed(int64(shape, [0] * 16385)), path), "output_too_large")
    assert (body["limit"], body["maximum"]) == ("output_bytes", 2**30)


def test_an_output_of_too_many_elements_but_no_bytes_is_decided_from_the_shapes(every_client: httpx.Client) -> None:
    answer = ask(every_client, floats(1, 0), int64([2, 1], [0, 0]))
    assert output(answer) == ([2, 0], [])
    body = refused(ask(every_client, tensor("bool", [1, 2**40, 0], []), int64([3, 2**40, 0, 1], [])), "limit_exceeded")
    assert body["limit"] == "bytes"


def test_negative_indices_wrap_in_onnx_and_not_in_openvino(every_client: httpx.Client) -> None:
    indices = int64([1, 2], [-1, -2])
    assert output(ask(every_client, floats(2, 2), indices)) == ([1], [2.0])
    for dialect in ("onnx-12", "onnx-11"):
        assert output(ask(every_client, floats(2, 2), indices, dialect=dialect)) == ([1], [2.0])
    body = refused(ask(every_client, floats(2, 2), indices, dialect="openvino-8"), "index_out_of_bounds")
    assert body["total"] == 2
    assert [place["allowed"] for place in body["errors"]] == [[0, 1], [0, 1]]


def test_negative_indices_wrap_in_gather_from_11_on(every_client: httpx.Client) -> None:
    for dialect in ("onnx-13", "onnx-11"):
        assert output(ask(every_client, floats(3), int64([1], [-1]), "/gather", dialect=dialect)) == ([1], [2.0])
    answer = ask(every_client, floats(3), int64([1], [-1]), "/gather", dialect="onnx-1")
    assert refused(answer, "index_out_of_bounds")["errors"][0]["allowed"] == [0, 2]


@pytest.mark.parametrize("value", [2**64 - 1, 2**63, 2**63 + 1, 2**64 - 3])
def test_an_unsigned_index_does_not_turn_negative(every_client: httpx.Client, value: int) -> None:
    indices = tensor("uint64", [1, 1], [value])
    body = refused(ask(every_client, floats(4), indices, dialect="openvino-8"), "index_out_of_bounds")
    assert body["errors"][0]["value"] == value
    assert body["errors"][0]["allowed"] == [0, 3]


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_every_integer_type_indexes_under_openvino(every_client: httpx.Client, dtype: str) -> None:
    answer = ask(every_client, floats(3, 2), tensor(dtype, [2, 1], [2, 0]), dialect="openvino-8")
    assert output(answer) == ([2, 2], [4.0, 5.0, 0.0, 1.0])


@pytest.mark.parametrize("shape", [[], [1], [2, 1]])
def test_gather_takes_indices_of_any_rank(every_client: httpx.Client, shape: list[int]) -> None:
    values = [1] * (2 if len(shape) == 2 else 1)
    found, _ = output(ask(every_client, floats(3, 2), int64(shape, values), "/gather"))
    assert found == [*shape, 2]


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
