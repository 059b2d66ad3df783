from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.formats.body_formats import LONG_BINARY, LONG_HEADER, LONG_JSON
from app.formats.oip.infer_answer import write_answer
from app.formats.oip.infer_document import AskedInference, Model
from app.formats.oip.read_body import is_long, read_body
from app.tensors.dtypes import DTYPES
from app.tensors.gather_call import Answer
from app.tensors.operator_signature import AXIS, BATCH_DIMS, Signature
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor

GATHERND = Model("gathernd", Signature("gathernd", (BATCH_DIMS,), ("onnx-13", "openvino-8")))
RESIDENT = Model("table", Signature("gathernd", (BATCH_DIMS,), ("onnx-13",)), resident=True)
LIMITS = Limits()
DATA = np.arange(6, dtype=np.float32).reshape(3, 2)
INDICES = np.array([[1], [2]], np.int64)


pytestmark = pytest.mark.usefixtures("every_codec")


def binary(
    data: Any = DATA, indices: Any = INDICES, datatype: str = "FP32", lead: int = 0, **members: Any
) -> tuple[memoryview, int]:
    """A request whose items are all behind the JSON, which ends `lead` bytes behind a multiple of 64."""
    inputs = [
        {"name": "data", "datatype": datatype, "shape": data.shape, "parameters": {"binary_data_size": data.nbytes}},
        {"name": "indices", "datatype": "INT64", "shape": indices.shape,
         "parameters": {"binary_data_size": indices.nbytes}},
    ]  # fmt: skip
    head = json.dumps({"inputs": inputs, **members}).encode()
    return placed(head, data.tobytes() + indices.tobytes(), lead), len(head)


def placed(head: bytes, blobs: bytes, off: int) -> memoryview:
    """A body whose blobs start `off` bytes behind a multiple of 64."""
    room = np.zeros(len(head) + len(blobs) + 128, np.uint8)
    start = (off - room.ctypes.data - len(head)) % 64
    room[start : start + len(head) + len(blobs)] = np.frombuffer(head + blobs, np.uint8)
    return room.data[start : start + len(head) + len(blobs)]


def described(**changes: Any) -> bytes:
    """Two inputs in JSON, with members of `data` changed."""
    data = {"name": "data", "datatype": "FP32", "shape": [3], "data": [1, 2, 3]} | changes
    return json.dumps({"inputs": [data, {"name": "indices", "datatype": "INT64", "shape": [1], "data": [0]}]}).encode()


def refusal(body: Any, size: int | None = None, model: Model = GATHERND) -> tuple[str, str | None]:
    with pytest.raises(GatherError) as caught:
        read_body(body, size, model, LIMITS)
    places = caught.value.places
    return caught.value.code, places[0].pointer if places else None


def data_of(request: AskedInference) -> Tensor:
    assert isinstance(request.call.data, Tensor)
    return request.call.data


def test_aligned_binary_items_share_the_memory_of_the_body() -> None:
    body, size = binary()
    request = read_body(body, size, GATHERND, LIMITS)
    whole = np.frombuffer(body, np.uint8)
    assert np.shares_memory(data_of(request).array, whole)
    assert np.shares_memory(request.call.indices.array, whole)


@pytest.mark.parametrize("off", range(1, 9))
def test_items_that_are_not_aligned_are_right_and_aligned(off: int) -> None:
    body, size = binary(lead=off)
    request = read_body(body, size, GATHERND, LIMITS)
    for tensor, array in ((data_of(request), DATA), (request.call.indices, INDICES)):
        assert tensor.array.flags.aligned
        assert np.array_equal(tensor.array, array.reshape(-1))
        assert tensor.shape == array.shape


def test_items_in_json_are_pointed_at_one_by_one_and_binary_ones_as_a_whole() -> None:
    request = read_body(described(), None, GATHERND, LIMITS)
    assert data_of(request).locate(2) == "/inputs/0/data/2"
    assert request.call.indices.shape_pointer == "/inputs/1/shape"
    assert request.call.indices.dtype_pointer == "/inputs/1/datatype"
    assert request.call.pointer("batch_dims") == "/parameters/batch_dims"
    body, size = binary()
    assert read_body(body, size, GATHERND, LIMITS).call.indices.locate(1) == "/inputs/1"
    nested = described(shape=[3, 1], data=[[1], [2], [3]])
    assert data_of(read_body(nested, None, GATHERND, LIMITS)).locate(2) == "/inputs/0/data/2/0"


def test_a_raw_body_is_a_column_of_indices() -> None:
    request = read_body(np.array([4, 7]).tobytes(), 0, RESIDENT, LIMITS)
    assert request.call.data == "table"
    assert request.call.indices.shape == (2, 1)
    assert request.call.indices.array.tolist() == [4, 7]
    assert request.binary
    assert refusal(bytes(9), 0, RESIDENT) == ("element_count_mismatch", "/inputs/0")


def test_what_is_broken_first_is_told_first() -> None:
    wrong_value = described(data=[1, "x", 3])
    assert refusal(wrong_value) == ("value_not_representable", "/inputs/0/data/1")
    # Framing before all else, also where something else was met first.
    assert refusal(wrong_value + b"]")[0] == "malformed_request"
    assert refusal(described(name="other") + b"]")[0] == "malformed_request"
    # Fields before types, types before counts, counts before values, whichever input has them.
    fields = json.loads(described(datatype="FP8"))
    fields["inputs"][1]["shape"] = [-1]
    assert refusal(json.dumps(fields).encode()) == ("invalid_field", "/inputs/1/shape/0")
    fields["inputs"][1] |= {"shape": [2]}
    assert refusal(json.dumps(fields).encode()) == ("unsupported_dtype", "/inputs/0/datatype")
    fields["inputs"][0] |= {"datatype": "BOOL"}
    assert refusal(json.dumps(fields).encode()) == ("element_count_mismatch", "/inputs/1/data")
    fields["inputs"][1] |= {"shape": [1]}
    assert refusal(json.dumps(fields).encode()) == ("value_not_representable", "/inputs/0/data/0")


def test_a_count_in_json_is_told_before_a_binary_value() -> None:
    inputs = [
        {"name": "data", "datatype": "BOOL", "shape": [2], "parameters": {"binary_data_size": 2}},
        {"name": "indices", "datatype": "INT64", "shape": [2], "data": [0]},
    ]
    head = json.dumps({"inputs": inputs}).encode()
    assert refusal(head + b"\x01\x02", len(head)) == ("element_count_mismatch", "/inputs/1/data")
    head = head.replace(b"[0]", b"[0, 0]")
    assert refusal(head + b"\x01\x02", len(head)) == ("value_not_representable", "/inputs/0")


@pytest.mark.parametrize(
    "text",
    [
        b'{"inputs": [], "inputs": []}',
        described().replace(b'"shape": [3]', b'"shape": [3], "shape": [3]'),
        described().replace(b'"data": [1, 2, 3]', b'"data": [1, 2, 3], "data": [1, 2, 3]'),
        described().replace(b"}]}", b'}], "x": {"y": [{"z": 1, "z": 2}]}}'),
    ],
)
def test_a_key_given_twice(text: bytes) -> None:
    assert refusal(text)[0] == "malformed_request"


def test_bare_non_finite_numbers_are_items_of_floats_and_null_elsewhere() -> None:
    text = described(data=[float("nan"), float("inf"), "NaN", float("-inf"), "-Infinity", 1.5], shape=[6])[:-1]
    request = read_body(text + b', "x": [-Infinity, "NaN\\" NaN", {"y": NaN}]}', None, GATHERND, LIMITS)
    np.testing.assert_equal(data_of(request).array, np.array([np.nan, np.inf, np.nan, -np.inf, -np.inf, 1.5], "f4"))
    named = described()[:-1] + b', "id": NaN, "parameters": {"batch_dims": 0, "x": [NaN, -Infinity]}}'
    assert read_body(named, None, GATHERND, LIMITS).identifier is None
    assert refusal(named.replace(b": 0", b": NaN")) == ("invalid_field", "/parameters/batch_dims")


@pytest.mark.parametrize("datatype", ["INT8", "BYTES", "BOOL"])
@pytest.mark.parametrize("token", [b"NaN", b"-Infinity"])
def test_bare_non_finite_numbers_are_no_items_of_other_types(datatype: str, token: bytes) -> None:
    with pytest.raises(GatherError) as caught:
        read_body(
            described(datatype=datatype, shape=[1]).replace(b"[1, 2, 3]", b"[" + token + b"]"), None, GATHERND, LIMITS
        )
    (place,) = caught.value.places
    assert (caught.value.code, place.pointer, place.value) == ("value_not_representable", "/inputs/0/data/0", None)


def test_an_integer_with_a_fraction_or_an_exponent_is_exact() -> None:
    text = described(datatype="INT64").replace(b"[1, 2, 3]", b"[2917146840092656656.0, 9223372036854775807E+00, -3e2]")
    assert data_of(read_body(text, None, GATHERND, LIMITS)).array.tolist() == [2917146840092656656, 2**63 - 1, -300]
    assert refusal(text.replace(b"807E", b"808E")) == ("value_not_representable", "/inputs/0/data/1")
    shaped = described(parameters={"batch_dims": 0}).replace(b'"shape": [3]', b'"shape": [30e-1]')
    assert data_of(read_body(shaped, None, GATHERND, LIMITS)).shape == (3,)


@pytest.mark.parametrize("datatype", [[], {}, None, True, 1e400, ["FP32"]])
def test_a_datatype_that_is_no_text_beside_a_bare_number(datatype: object) -> None:
    assert refusal(described(datatype=datatype, data=[float("nan")]))[0] == "invalid_field"


def test_bare_numbers_that_only_look_right_stay_malformed() -> None:
    for token in (b"nan", b"NAN", b"inf", b"Inf", b"+Infinity", b"- Infinity", b"NaNs", b"1NaN", b"Infinity2"):
        assert refusal(described().replace(b"[1, 2, 3]", b"[1, " + token + b", 3]"))[0] == "malformed_request"


def test_the_json_of_binary_requests_is_remembered_with_its_model() -> None:
    body, size = binary(parameters={"batch_dims": 0})
    assert read_body(body, size, GATHERND, LIMITS).call.operator == "gathernd"
    gather = Model("gather", Signature("gather", (AXIS,), ("onnx-13",)))
    assert refusal(body, size, gather) == ("invalid_field", "/parameters/batch_dims")
    assert refusal(body, size, RESIDENT) == ("invalid_field", "/inputs/0/name")


def test_one_json_with_other_items_is_another_request() -> None:
    for number in range(3):
        body, size = binary(np.full((3, 2), number, np.float32))
        assert data_of(read_body(body, size, GATHERND, LIMITS)).array.tolist() == [number] * 6


def test_a_body_is_read_on_the_event_loop_unless_its_json_or_its_items_are_long() -> None:
    assert not is_long(bytes(LONG_JSON), None, GATHERND)
    assert is_long(bytes(LONG_JSON + 1), None, GATHERND)
    assert not is_long(bytes(LONG_BINARY), LONG_HEADER, GATHERND)
    assert is_long(bytes(LONG_BINARY + 1), LONG_HEADER, GATHERND)
    assert is_long(bytes(LONG_BINARY), LONG_HEADER + 1, GATHERND)


def test_a_request_that_differs_in_its_id_and_lengths_alone_is_not_validated_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(count: int, form: str) -> AskedInference:
        data, indices = np.arange(count, dtype=np.float32), np.array([[count - 1]])
        if form == "binary":
            body, size = binary(data, indices, id=f"id-{count}")
            return read_body(body, size, GATHERND, LIMITS)
        text = json.loads(described(data=data.tolist(), shape=[count]))
        text["inputs"][1] |= {"data": [[count - 1]], "shape": [1, 1]}
        return read_body(json.dumps(text | {"id": f"id-{count}"}).encode(), None, GATHERND, LIMITS)

    for form in ("JSON", "binary"):
        ask(3, form)
        with monkeypatch.context() as patch:
            patch.setattr("app.formats.oip.read_body.read_document", None)
            for count in (3, 4, 1000):
                asked = ask(count, form)
                assert asked.identifier == f"id-{count}"
                assert data_of(asked).array.tolist() == list(range(count))
                assert asked.call.indices.array.tolist() == [count - 1]


@pytest.mark.parametrize(
    "more",
    [
        b'"id": "a", "parameters": {"id": "b"}',
        b'"id": "a", "parameters": {"shape": [3]}',
        b'"parameters": {"id": "b", "x": {"binary_data_size": 4}}',
        b'"id": null',
        b'"id": "\\u0061"',
    ],
)
def test_members_that_are_ignored_are_not_taken_for_those_that_count(more: bytes) -> None:
    def ask(more: bytes) -> tuple[str | None, tuple[int, ...]]:
        asked = read_body(described()[:-1] + b", " + more + b"}", None, GATHERND, LIMITS)
        return asked.identifier, data_of(asked).shape

    expected = json.loads(b"{" + more + b"}").get("id")
    for _ in range(2):
        assert ask(more) == (expected, (3,))
        assert ask(more.replace(b"b", b"c").replace(b"4", b"5").replace(b"[3]", b"[2]")) == (expected, (3,))


@pytest.mark.parametrize("identifier", [None, "", 'a"\n\\ä'])
@pytest.mark.parametrize("as_binary", [False, True])
def test_answers_are_json_that_others_read(identifier: str | None, as_binary: bool) -> None:
    array = np.array([1.5, np.nan, -np.inf], np.float32)
    answer = Answer({"output": Tensor(DTYPES["float32"], (3, 1), array)}, "onnx-12", "cpu")
    asked = read_body(described(), None, GATHERND, LIMITS)._replace(identifier=identifier, binary=as_binary)
    pieces, size = write_answer(answer, GATHERND, asked)
    body = b"".join(pieces)
    document = json.loads(body[:size])
    assert document.get("id") == identifier
    assert ("id" in document) == (identifier is not None)
    assert (document["model_name"], document["model_version"]) == ("gathernd", "1")
    assert document["parameters"] == {"dialect": "onnx-12", "device": "cpu"}
    (output,) = document["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("output", "FP32", [3, 1])
    if as_binary:
        assert output["parameters"] == {"binary_data_size": 12}
        assert body[size:] == array.tobytes()
        assert np.shares_memory(np.frombuffer(pieces[1], np.float32), array)
    else:
        assert size is None
        assert output["data"] == [1.5, "NaN", "-Infinity"]


def test_complex_answers_are_pointed_to_the_native_route() -> None:
    answer = Answer({"output": Tensor(DTYPES["complex64"], (1,), np.ones(1, np.complex64))}, "onnx-13", "cpu")
    with pytest.raises(GatherError, match="POST /gathernd"):
        write_answer(answer, RESIDENT, read_body(bytes(8), 0, RESIDENT, LIMITS))
