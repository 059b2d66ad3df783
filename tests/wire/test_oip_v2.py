from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from app.errors import GatherError
from app.formats.oip.infer_document import AskedInference, Model
from app.formats.oip.read_body import read_body
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
        read_body((body, size), model, LIMITS)
    places = caught.value.places
    return caught.value.code, places[0].pointer if places else None


def data_of(request: AskedInference) -> Tensor:
    assert isinstance(request.call.data, Tensor)
    return request.call.data


def test_aligned_binary_items_share_the_memory_of_the_body() -> None:
    body, size = binary()
    request = read_body((body, size), GATHERND, LIMITS)
    whole = np.frombuffer(body, np.uint8)
    assert np.shares_memory(data_of(request).array, whole)
    assert np.shares_memory(request.call.indices.array, whole)


@pytest.mark.parametrize("off", range(1, 9))
def test_items_that_are_not_aligned_are_right_and_aligned(off: int) -> None:
    body, size = binary(lead=off)
    request = read_body((body, size), GATHERND, LIMITS)
    for tensor, array in ((data_of(request), DATA), (request.call.indices, INDICES)):
        assert tensor.array.flags.aligned
        assert np.array_equal(tensor.array, array.reshape(-1))
        assert tensor.shape == array.shape


def test_a_count_in_json_is_told_before_a_binary_value() -> None:
    inputs = [
        {"name": "data", "datatype": "BOOL", "shape": [2], "parameters": {"binary_data_size": 2}},
        {"name": "indices", "datatype": "INT64", "shape": [2], "data": [0]},
    ]
    head = json.dumps({"inputs": inputs}).encode()
    assert refusal(head + b"\x01\x02", len(head)) == ("element_count_mismatch", "/inputs/1/data")
    head = head.replace(b"[0]", b"[0, 0]")
    assert refusal(head + b"\x01\x02", len(head)) == ("value_not_representable", "/inputs/0")


def test_the_json_of_binary_requests_is_remembered_with_its_model() -> None:
    body, size = binary(parameters={"batch_dims": 0})
    assert read_body((body, size), GATHERND, LIMITS).call.operator == "gathernd"
    gather = Model("gather", Signature("gather", (AXIS,), ("onnx-13",)))
    assert refusal(body, size, gather) == ("invalid_field", "/parameters/batch_dims")
    assert refusal(body, size, RESIDENT) == ("invalid_field", "/inputs/0/name")


def test_one_json_with_other_items_is_another_request() -> None:
    for number in range(3):
        body, size = binary(np.full((3, 2), number, np.float32))
        assert data_of(read_body((body, size), GATHERND, LIMITS)).array.tolist() == [number] * 6


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
        asked = read_body((described()[:-1] + b", " + more + b"}", None), GATHERND, LIMITS)
        return asked.identifier, data_of(asked).shape

    expected = json.loads(b"{" + more + b"}").get("id")
    for _ in range(2):
        assert ask(more) == (expected, (3,))
        assert ask(more.replace(b"b", b"c").replace(b"4", b"5").replace(b"[3]", b"[2]")) == (expected, (3,))
