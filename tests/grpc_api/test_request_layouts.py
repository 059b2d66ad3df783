"""Requests whose layout came before are read as if it had not: every other byte counts, and so does every item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from app.api.v2_model_lookup import _MODELS
from app.errors import GatherError
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from app.wire.v2_grpc_layouts import RequestLayouts
from app.wire.v2_grpc_request import read_grpc_request, split
from app.wire.v2_request_json import Model
from app.wire.v2_request_tensors import Request
from tests.for_each import for_each
from tests.grpc_api.conftest import GrpcServer
from tests.grpc_api.messages import Channel, example, output, request
from tests.oip.bodies import Array

GATHERND = _MODELS["gathernd"]
LIMITS = Limits()


def read(message: bytes) -> Request:
    return read_grpc_request(split(message), GATHERND, LIMITS, None)


def known(*messages: bytes, model: Model = GATHERND) -> RequestLayouts:
    """Layouts that have met each of these messages often enough."""
    layouts = RequestLayouts()
    for message in messages:
        for _ in range(2):
            layouts.add(message, split(message), model)
    return layouts


def facts(made: Request) -> tuple[Any, ...]:
    """All that a request says."""
    call = made.call
    tensors = [one for one in (call.data, call.indices, call.updates) if isinstance(one, Tensor)]
    described = [
        (one.dtype.name, one.shape, one.array.tobytes(), one.pointer, one.form, one.shape_pointer, one.dtype_pointer)
        for one in tensors
    ]
    names = set(call.__slots__) - {"data", "indices", "updates", "fill_value"}
    return described, sorted((name, str(getattr(call, name))) for name in names), made[1:]


def outcome(work: Any) -> Any:
    try:
        return facts(work())
    except GatherError as error:
        return error.code, error.detail


@for_each("name", ["", "7", "ü" * 40])
def test_every_byte_of_a_message_counts(name: str) -> None:
    message = example(id=name, parameters={"batch_dims": 0, "device": "cpu", "timeout": 5_000_000}).SerializeToString()
    layouts = known(message)
    met = 0
    for at in range(len(message)):
        for change in (1, 0x10, 0x80, 0xFF):
            changed = message[:at] + bytes([message[at] ^ change]) + message[at + 1 :]
            layout = layouts.find(changed)
            if layout is None:
                continue
            met += 1
            remembered = layout
            assert outcome(lambda: remembered.read(changed, lambda _: None)) == outcome(lambda: read(changed))  # noqa: B023
    arrays = sum(map(len, split(message).raws))
    assert met == 4 * (arrays + len(name.encode()))


def test_a_longer_message_has_another_layout() -> None:
    message = example().SerializeToString()
    layouts = known(message)
    assert layouts.find(message) is not None
    assert layouts.find(message + b"\x1a\x01a") is None
    assert layouts.find(message[:-1]) is None


def test_arrays_that_are_not_aligned_are_copied_and_charged() -> None:
    data = np.arange(4, dtype=np.float64).reshape(2, 2)
    for padding in range(1, 9):
        arrays = {"data": ("FP64", data), "indices": ("INT64", np.array([[1], [0]]))}
        message = request(arrays, parameters={"p" * padding: 1}).SerializeToString()
        layout = known(message).find(message)
        assert layout is not None
        charged: list[int] = []
        made = layout.read(message, charged.append)
        places = [message.index(raw) % 8 for raw in (data.tobytes(), np.array([[1], [0]]).tobytes())]
        assert charged == [size for size, place in zip((32, 16), places, strict=True) if place]
        assert isinstance(made.call.data, Tensor)
        assert made.call.data.array.flags.aligned
        assert made.call.indices.array.flags.aligned


@for_each("datatype", ["BOOL", "BYTES"])
def test_items_that_have_to_be_looked_at_are_not_remembered(datatype: str) -> None:
    data: Array = np.array([True, False]) if datatype == "BOOL" else np.array(["a", "b"], object)
    message = request({"data": (datatype, data), "indices": ("INT64", np.array([[1]]))}).SerializeToString()
    assert known(message).find(message) is None


def test_what_is_remembered_has_a_bound() -> None:
    layouts = RequestLayouts()
    for number in range(3000):
        message = example(id="x" * (number % 300), parameters={str(number): 1}).SerializeToString()
        for _ in range(2):
            layouts.add(message, split(message), GATHERND)
    assert sum(map(len, layouts._layouts.values())) <= 4 * 128


@pytest.fixture(scope="module")
def channel(grpc_server: GrpcServer) -> Iterator[Channel]:
    with Channel(grpc_server.address) as made:
        yield made


def test_repeated_requests_are_answered_with_their_own_items_and_ids(channel: Channel) -> None:
    rng = np.random.default_rng(3)
    for number in range(40):
        data, indices = rng.random((5, 3), np.float32), rng.integers(-5, 5, (4, 1))
        arrays: dict[str, tuple[str, Array]] = {"data": ("FP32", data), "indices": ("INT64", indices)}
        answer = channel.call("ModelInfer", request(arrays, id=str(number % 10)))
        assert answer.id == str(number % 10)
        assert np.array_equal(output(answer, np.float32), data[indices[:, 0]])


def test_a_wrong_item_of_a_repeated_request_is_refused(channel: Channel) -> None:
    for _ in range(4):
        channel.call("ModelInfer", example())
        wrong = example()
        wrong.raw_input_contents[1] = np.array([[1], [2]]).tobytes()
        assert channel.refused("ModelInfer", wrong)[1]["errors"][0]["pointer"] == "/inputs/1"
    wrong = example(id="ü")
    for _ in range(3):
        channel.call("ModelInfer", wrong)


def test_a_repeated_request_to_a_tensor_follows_its_changes(grpc_server: GrpcServer, channel: Channel) -> None:
    made = request({"indices": ("INT64", np.array([[1]]))}, "changing")
    versions: tuple[tuple[str, Any, tuple[int, ...]], ...] = (
        ("float32", np.float32, (3, 2)),
        ("int16", np.int16, (4,)),
        ("float32", np.float32, (2,)),
    )
    kind = {"content-type": "application/octet-stream"}
    with grpc_server.http.client() as http:
        for dtype, numpy_type, shape in versions:
            array = np.arange(np.prod(shape)).astype(numpy_type).reshape(shape)
            query = {"dtype": dtype, "shape": ",".join(map(str, shape))}
            put = http.put("/tensors/changing", params=query, content=array.tobytes(), headers=kind)
            assert put.status_code in (200, 201)
            for _ in range(3):
                assert np.array_equal(output(channel.call("ModelInfer", made), numpy_type), array[[1]])
        assert http.delete("/tensors/changing").status_code == 204
    for _ in range(3):
        assert channel.refused("ModelInfer", made)[1]["code"] == "model_not_found"
