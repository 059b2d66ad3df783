"""Inputs of a lookup that are alike are read in one call: what comes of it is what comes of them one by one."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple
from random import Random
from typing import Any, NamedTuple

import pytest

from app.errors import GatherError
from app.tensors.lookup_call import Feature
from app.tensors.shape_limits import Limits
from app.tensors.tensor import Tensor
from app.wire import safetensors, v2_grpc_request, v2_grpc_short_contents, v2_request_tensors
from app.wire.plain_protobuf_fields import varint
from app.wire.safetensors_lookup import read_lookup
from app.wire.v2_grpc_request import read_grpc_lookup, split
from app.wire.v2_lookup import read_lookup_request
from tests.conftest import samples
from tests.traced_memory import peak_of
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
            patch.setattr(v2_grpc_short_contents, "FEW", 1 << 20)
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


def pieces_of(random: Random, one: Given) -> list[bytes]:
    """The fields of contents that have the items of `one`, in one of the many ways that protobuf allows."""
    if not one.field:
        return random.choice([[], [field(3, b"")], [field(6, b""), b"\x48\x01"]])
    if random.random() < 0.5:
        return [field(one.field, one.contents)]
    if one.field in (6, 7):
        size, tag = (4, b"\x35") if one.field == 6 else (8, b"\x39")
        return [tag + one.contents[at : at + size] for at in range(0, len(one.contents), size)]
    if one.field == 8:
        return [field(8, text) for text in random.choice([(b"a,b", b"]"), (b"",), (b"", b"a,,b"), (b"\xff",)])]
    values: list[bytes] = []
    for octet in one.contents:
        if values and values[-1][-1] >= 0x80:
            values[-1] += bytes([octet])
        else:
            values.append(bytes([octet]))
    return [random.choice([bytes([one.field << 3]) + value, field(one.field, value)]) for value in values]


def written(random: Random, one: Given, number: int) -> bytes:
    """An input, its contents in one part or in several, between its other fields, and with fields of other kinds."""
    pieces = pieces_of(random, one)
    if random.random() < 0.1:
        pieces.insert(
            random.randrange(len(pieces) + 1), random.choice([b"\x40\x01", b"\x1d\0\0\0\0", field(6, b""), b"\x7a\0"])
        )
    cut = random.randrange(len(pieces) + 1) if random.random() < 0.3 else len(pieces)
    parts = [b"".join(pieces[:cut]), b"".join(pieces[cut:])]
    members = [
        field(1, b"%d.indices" % number),
        field(2, one.datatype.encode()),
        field(3, b"".join(varint(size % 2**64) for size in one.shape)),
        *(field(5, part) for part in parts if part or random.random() < 0.2),
    ]
    members += [field(5, b"")] * random.choices([0, 15, 17], [2000, 1, 1])[0]
    if random.random() < 0.3:
        random.shuffle(members)
    if random.random() < 0.1:
        members.append(random.choice([b"\x40\x01", field(9, b"x" * 150), field(2, one.datatype.encode())]))
    return field(5, b"".join(members))


def test_contents_are_read_together_as_one_by_one_however_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    random, seen = Random(7), Counter[str]()
    count = samples(600)
    for _ in range(count):
        pool = random.sample(RIGHT, random.choice([1, 2, 5, len(RIGHT)]))
        arrays = random.choices(pool, k=random.choice([9, 40, 90, 300]))
        if random.random() < 0.5:
            for one in random.choices(random.sample(WRONG, 2), k=random.choice([1, 2])):
                arrays[random.randrange(len(arrays))] = one
        parts = [written(random, one, number) for number, one in enumerate(arrays)]
        for _ in range(random.choice([0, 0, 0, 1, 3])):
            other = random.choice(
                [b"\x3a\0", field(1, b"model"), field(1, b"\xff"), field(3, b"id"), b"\x40\x05", b"\x2a\0"]
            )
            parts.insert(random.randrange(len(parts)), other)
        if random.random() < 0.1:
            place = random.randrange(len(parts))
            at, octet = random.randrange(len(parts[place])), random.choice([0, 0x7F, 0x80, 0xFF])
            parts[place] = parts[place][:at] + bytes([octet]) + parts[place][at + 1 :]
        parameter = field(1, b"lookup") + field(2, field(3, document(arrays).encode()))
        whole = b"".join(parts) + field(4, parameter)
        most = random.choice([v2_grpc_request.MOST_INPUTS] * 15 + [30])

        def read(_: Arrays, whole: bytes = whole, most: int = most) -> Sequence[Feature]:
            return read_grpc_lookup(split(whole, None, None, most), Limits(), None).call.features

        with monkeypatch.context() as patch:
            patch.setattr(v2_grpc_request, "_MOST_CONTENTS", random.choice([1 << 14] * 15 + [50]))
            together = outcome(read, arrays)
            patch.setattr(v2_grpc_short_contents, "FEW", 1 << 20)
            assert together == outcome(read, arrays), whole
        seen[together[0]] += 1
    codes = (
        "read",
        "malformed_request",
        "element_count_mismatch",
        "value_not_representable",
        "invalid_field",
        "limit_exceeded",
    )
    assert min(seen[code] for code in codes) > count // 300, seen


@pytest.mark.parametrize("first", ["name", "broken", "inputs", "contents", "parts"])
@pytest.mark.parametrize("second", ["name", "broken", "inputs", "contents", "parts"])
def test_the_fault_that_comes_first_in_a_message_is_told(
    first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(faults: Mapping[str, int]) -> tuple[str, Any]:
        parts = [written(Random(1), ONE, number) for number in range(60)]
        if "broken" in faults:
            parts[faults["broken"]] = field(5, field(5, b"\x1a\x05"))
        if "parts" in faults:
            parts[faults["parts"]] = field(5, field(5, b"") * 17)
        if "name" in faults:
            parts.insert(faults["name"], field(1, b"\xff"))

        def read(_: object) -> Sequence[Feature]:
            split(b"".join(parts), None, None, faults.get("inputs", 1 << 14))
            return []

        with monkeypatch.context() as patch:
            patch.setattr(v2_grpc_request, "_MOST_CONTENTS", faults.get("contents", 1 << 14))
            return outcome(read, [])

    alone = told({first: 20})
    assert alone[0] == ("malformed_request" if first in ("name", "broken") else "limit_exceeded")
    if first != second:
        assert told({first: 20, second: 40}) == alone


@pytest.mark.parametrize("count", [9, 600, 3000])
@pytest.mark.parametrize("few", [8, 1 << 20])
def test_numbers_on_their_own_and_packed_ones_are_read_in_their_order(
    count: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(v2_grpc_short_contents, "FEW", few)
    random = Random(count)
    numbers = [random.getrandbits(random.choice([7, 14, 62])) for _ in range(count)]
    contents = b""
    for number in numbers:
        contents += random.choice(
            [b"\x18" + varint(number), field(3, varint(number)), field(6, b"") + field(3, varint(number))]
        )
    for parts in ([contents], [contents, field(3, b""), b""]):
        described = field(2, b"INT64") + field(3, varint(count)) + b"".join(field(5, part) for part in parts)
        made = b"".join(field(5, field(1, b"%d.indices" % number) + described) for number in range(10))
        parameter = field(1, b"lookup") + field(2, field(3, document([ONE] * 10).encode()))
        features = read_grpc_lookup(split(made + field(4, parameter)), Limits(), None).call.features
        assert all(one.indices.array.tolist() == numbers for one in features)


def test_a_field_of_numbers_occurs_no_more_often_than_the_limit_says() -> None:
    described = field(1, b"0.indices") + field(2, b"INT64") + field(3, varint(4096))
    for times, code in ((4096, "read"), (4097, "limit_exceeded")):
        for contents in (
            field(5, b"\x18\1" * times),
            field(5, b"\x18\1" * 8) + field(5, field(3, b"\1") * (times - 8)),
        ):
            made = field(5, described + contents)
            parameter = field(1, b"lookup") + field(2, field(3, document([ONE]).encode()))
            whole = made + field(4, parameter)
            found, _ = outcome(lambda _: read_grpc_lookup(split(whole), Limits(), None).call.features, [])  # noqa: B023
            assert found == code


def test_short_contents_take_no_more_memory_than_is_charged() -> None:
    one = Given("INT64", [1], "", b"", 3, b"\x01")
    rest = field(2, b"INT64") + field(3, b"\1")
    for contents in (
        field(3, b"\1"),
        b"\x18\1" * 40,
        field(8, b"") * 40,
        b"".join(field(number, b"") for number in range(1, 9)) * 4,
    ):
        parts = [field(5, field(1, b"%d.indices" % number) + rest + field(5, contents)) for number in range(900)]
        whole = b"".join(parts) + field(4, field(1, b"lookup") + field(2, field(3, document([one] * 900).encode())))
        charges: list[int] = []
        with suppress(GatherError):
            read_grpc_lookup(split(whole), Limits(), None)

        def read(whole: bytes = whole, charges: list[int] = charges) -> None:
            with suppress(GatherError):
                read_grpc_lookup(split(whole, charges.append), Limits(), charges.append)

        peak = peak_of(read)
        assert peak <= sum(charges), contents
