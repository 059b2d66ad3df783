"""Inputs of a lookup that are alike are read in one call: what comes of it is what comes of them one by one."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple
from random import Random
from typing import Any, NamedTuple

import pytest

from app.errors import GatherError
from app.tensors.lookup_call import Feature
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from app.wire import safetensors, v2_grpc_request, v2_request_tensors
from app.wire.protobuf_fields import varint
from app.wire.safetensors_lookup import read_lookup
from app.wire.v2_grpc_request import read_grpc_lookup, split
from app.wire.v2_lookup import read_lookup_request
from tests.conftest import samples
from tests.wire.test_features_read_together import items

pytestmark = pytest.mark.usefixtures("every_codec")


class Given(NamedTuple):
    """An array: as JSON has its items, as bytes, and as protobuf has them, field 0 for raw bytes."""

    datatype: str
    shape: list[int]
    data: str
    raw: bytes
    field: int = 0
    contents: bytes = b""


ONE = Given("INT64", [1], "[3]", struct.pack("<q", 3), 3, b"\x03")
RIGHT = [
    ONE,
    ONE._replace(data="[ 4 ]", raw=struct.pack("<q", 4), contents=b"\x04"),
    ONE._replace(data="[-1]", raw=bytes([255] * 8), contents=bytes([255] * 9) + b"\x01"),
    Given("INT64", [2], "[300,4]", struct.pack("<2q", 300, 4), 3, b"\xac\x02\x04"),
    Given("INT64", [1, 2], "[3,4]", struct.pack("<2q", 3, 4), 3, b"\x03\x04"),
    Given("INT64", [1, 2], "[[3,4]]", struct.pack("<2q", 3, 4), 3, b"\x03\x04"),
    Given("INT32", [0], "[]", b""),
    Given("INT32", [], "7", struct.pack("<i", 7), 2, b"\x07"),
    Given("INT8", [2], "[3,100]", b"\x03\x64", 2, b"\x03\x64"),
    Given("BOOL", [2], "[true,false]", b"\x01\x00", 1, b"\x01\x00"),
    Given("BOOL", [2], "[false,true]", b"\x00\x01", 1, b"\x00\x02"),
    Given("FP32", [1], "[NaN]", struct.pack("<f", float("nan")), 6, struct.pack("<f", float("nan"))),
    Given("FP32", [1], "[0.5]", struct.pack("<f", 0.5), 6, struct.pack("<f", 0.5)),
    Given("BYTES", [2], '["a,b","]"]', b"\x03\0\0\0a,b\x01\0\0\0]", 8),
    Given("BYTES", [2], '["","a,,b"]', b"\x00\0\0\0\x04\0\0\0a,,b", 8),
    Given("BYTES", [1], '[""]', b"\x00\0\0\0", 8),
    Given("INT64", [300], json.dumps([3] * 300), bytes(2400), 3, bytes(300)),
]
WRONG = [
    ONE._replace(data="[0.5]", raw=bytes(7), contents=b"\x80"),
    ONE._replace(data="[3,4]", raw=bytes(16), contents=b"\x03\x04"),
    ONE._replace(data='["3"]', contents=b"\x80" * 11 + b"\x01"),
    Given("INT64", [1, 2], "[[3],[4]]", bytes(8), 3, b"\x03"),
    Given("INT8", [2], "[3,200]", b"\x03", 2, b"\x03\xc8\x01"),
    Given("BOOL", [2], "[true,2]", b"\x01\x02", 1, b"\x01"),
    Given("BYTES", [2], '["a",1]', b"\x09\0\0\0a,b\x01\0\0\0]", 8),
    Given("BYTES", [2], '["","a,,b","c"]', b"\x00\0\0\0\x04\0\0\0\xff\xff\xff\xff", 8),
]
MEMBERS = [ONE._replace(datatype="INT65"), ONE._replace(shape=[-1])]
Arrays = Sequence[Given]


def document(arrays: Arrays) -> str:
    return json.dumps({"features": [{"tensor": "t"}] * len(arrays)})


def as_json(arrays: Arrays) -> Sequence[Feature]:
    inputs = [
        f'{{"name":"{number}.indices","datatype":"{one.datatype}","shape":{one.shape},"data":{one.data}}}'
        for number, one in enumerate(arrays)
    ]
    text = f'{{"inputs":[{",".join(inputs)}],"parameters":{{"lookup":{json.dumps(document(arrays))}}}}}'
    return read_lookup_request(text.encode(), None, Limits()).call.features


def as_binary(arrays: Arrays) -> Sequence[Feature]:
    inputs = [
        {"name": f"{number}.indices", "datatype": one.datatype, "shape": one.shape}
        | {"parameters": {"binary_data_size": len(one.raw)}}
        for number, one in enumerate(arrays)
    ]
    text = json.dumps({"inputs": inputs, "parameters": {"lookup": document(arrays)}}).encode()
    body = text + b"".join(one.raw for one in arrays)
    return read_lookup_request(body, len(text), Limits()).call.features


def as_safetensors(arrays: Arrays) -> Sequence[Feature]:
    names = {"INT64": "I64", "INT32": "I32", "INT8": "I8", "FP32": "F32"}
    header: dict[str, Any] = {"__metadata__": {"lookup": document(arrays)}}
    end = 0
    for number, one in enumerate(arrays):
        offsets = [end, end + len(one.raw)]
        dtype = names.get(one.datatype, one.datatype)
        header[f"{number}.indices"] = {"dtype": dtype, "shape": one.shape, "data_offsets": offsets}
        end += len(one.raw)
    text = json.dumps(header).encode()
    return read_lookup(struct.pack("<Q", len(text)) + text + b"".join(one.raw for one in arrays), b"", Limits())[
        0
    ].features


def field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def message(arrays: Arrays, typed: bool) -> Sequence[Feature]:
    made = bytearray()
    for number, one in enumerate(arrays):
        described = field(1, b"%d.indices" % number) + field(2, one.datatype.encode())
        described += field(3, b"".join(varint(size % 2**64) for size in one.shape))
        if typed:
            described += field(5, field(one.field, one.contents) if one.field else b"")
        else:
            made += field(7, one.raw)
        made += field(5, described)
    parameter = field(1, b"lookup") + field(2, field(3, document(arrays).encode()))
    return read_grpc_lookup(split(bytes(made) + field(4, parameter)), Limits(), None).call.features


FORMATS: dict[str, Callable[[Arrays], Sequence[Feature]]] = {
    "JSON": as_json,
    "behind the JSON": as_binary,
    "safetensors": as_safetensors,
    "gRPC, raw": lambda arrays: message(arrays, typed=False),
    "gRPC, contents": lambda arrays: message(arrays, typed=True),
}


def shown(tensor: Tensor) -> tuple[Any, ...]:
    return (
        type(tensor), tensor.dtype, tensor.shape, items(tensor), tensor.pointer, tensor.form, tensor.shape_pointer,
        tensor.dtype_pointer, [tensor.locate(item) for item in range(min(3, tensor.array.size))],
    )  # fmt: skip


def outcome(read: Callable[[Arrays], Sequence[Feature]], arrays: Arrays) -> tuple[str, Any]:
    try:
        features = read(arrays)
    except GatherError as error:
        places = [astuple(place) for place in error.places]
        return error.code, (error.detail, places, error.hint, error.total, error.facts)
    return "read", [(one.tensor, one.pointer, one.pooling, shown(one.indices)) for one in features]


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_read_together_is_as_if_read_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random, seen = Random(len(name)), Counter[str]()
    for _ in range(samples(400)):
        # In most requests some arrays come again and again, so that there are many that are alike.
        pool = random.sample(RIGHT, random.choice([1, 2, 5, len(RIGHT)]))
        arrays = random.choices(pool, k=random.randrange(9, 90))
        wrong = random.sample(WRONG, random.choice([1, 2])) + random.choices(MEMBERS, k=random.random() < 0.1)
        if random.random() < 0.7:
            for one in random.choices(wrong, k=random.choice([1, 2, 5])):
                arrays[random.randrange(len(arrays))] = one
        together = outcome(FORMATS[name], arrays)
        with monkeypatch.context() as patch:
            patch.setattr(v2_request_tensors, "FEW", 1 << 20)
            patch.setattr(v2_grpc_request, "FEW", 1 << 20)
            patch.setattr(safetensors, "_FEW", 1 << 20)
            alone = outcome(FORMATS[name], arrays)
        assert together == alone, arrays
        seen[together[0]] += 1
    assert seen["read"] > samples(400) // 20
    assert len(seen) > 3


@pytest.mark.parametrize("name", ["behind the JSON", "gRPC, raw"])
def test_a_string_that_goes_on_in_the_next_array_is_refused(name: str) -> None:
    """Both have as many bytes, and together as many strings, as they should."""
    right = Given("BYTES", [2], "", b"\x03\0\0\0a,b\x01\0\0\0]")
    longer, shorter = right._replace(raw=b"\x03\0\0\0a,b\x05\0\0\0]"), right._replace(raw=bytes(12))
    code, (detail, places, *_) = outcome(FORMATS[name], [right] * 9 + [longer, shorter])
    assert code == "element_count_mismatch"
    assert places[0][0] == "/inputs/9"
    assert "ends early" in detail
