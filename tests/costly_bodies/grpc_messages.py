"""Costly messages of gRPC: lookups of many small arrays, and as many fields as a message may have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from app.formats.grpc.message_fields import varint
from tests.costly_bodies.read_body import Body, Codec
from tests.costly_bodies.request_texts import MOST_FEATURES, ONE_TABLE, POOLED_TABLE


def _field(number: int, value: bytes) -> bytes:
    """A field of bytes of a message over gRPC."""
    return bytes([number << 3 | 2]) + varint(len(value)) + value


_SMALLEST_FIELDS: Final[Mapping[str, bytes]] = {
    "inputs": _field(5, b""),
    "inputs of a name": _field(5, _field(1, b"0.indices")),
    "inputs with a parameter": _field(5, _field(4, _field(1, b"x"))),
    "outputs": _field(6, b""),
    "unknown fields": b"\x40\0",
    "raw arrays": _field(7, b""),
    "names": _field(1, b""),
    "one parameter": _field(4, b""),
}


def _lookup_parameter(document: str) -> bytes:
    return _field(4, _field(1, b"lookup") + _field(2, _field(3, document.encode())))


def _message_input(number: int, array: str, datatype: bytes, contents: bytes = b"") -> bytes:
    """An input of one item."""
    name = _field(1, f"{number}.{array}".encode())
    return _field(5, name + _field(2, datatype) + _field(3, b"\1") + contents)


def contents_bodies(size: int) -> Iterator[Body]:
    """Lookups over gRPC of many small arrays, each in contents of its own."""
    count = max(2, min(MOST_FEATURES, size // 60))
    parameter = _lookup_parameter(f'{{"features":[{",".join([ONE_TABLE] * count)}]}}')
    for name, datatype, contents in (
        ("an index", b"INT64", _field(3, b"\1")),
        ("a large index", b"INT64", _field(3, b"\xff\xff\x7f")),
        ("an index too many", b"INT64", _field(3, b"\1\1")),
        ("a number too large", b"INT8", _field(2, b"\xff\1")),
        ("a number that does not end", b"INT64", _field(3, b"\xff")),
        ("a number on its own", b"INT64", b"\x18\1"),
        ("a float", b"FP32", _field(6, bytes(4))),
        ("a string", b"BYTES", _field(8, b"")),
        ("a bool", b"BOOL", _field(1, b"\1")),
    ):
        each = b"".join(_message_input(number, "indices", datatype, _field(5, contents)) for number in range(count))
        yield Body(f"contents of {name}", "grpc lookup", each + parameter)
    index, float_field = _field(5, _field(3, b"\1")), _field(6, b"")
    for name, members in (
        ("an index and nothing, twice", index + _field(5, b"")),
        ("an index and no float", _field(5, _field(3, b"\1") + float_field)),
        ("an index in three parts", _field(5, _field(3, b"") * 2 + b"\x18\1")),
        ("indices on their own", _field(5, b"\x18\1" * 40)),
        ("strings of nothing", _field(5, _field(8, b"") * 40)),
    ):
        each = b"".join(_message_input(number, "indices", b"INT64", members) for number in range(count))
        yield Body(f"contents of {name}", "grpc lookup", each + parameter)
    for name, step, long in (
        ("an index, every ninth longer", 9, index + _field(15, bytes(120))),
        ("an index, every ninth long", 9, index + _field(15, bytes(4200))),
        ("an index, every 17th of 17 kB", 17, index + _field(15, bytes(17_000))),
        ("an index, every ninth of thousands", 9, _field(5, _field(3, b"\1" * 4200))),
    ):
        each = b"".join(
            _message_input(number, "indices", b"INT64", long if number % step == step - 1 else index)
            for number in range(count)
        )
        yield Body(f"contents of {name}", "grpc lookup", each + parameter)
    texts = [_field(5, _field(8, b"" if number else b"\xff")) for number in range(count)]
    each = b"".join(_message_input(number, "indices", b"BYTES", one) for number, one in enumerate(texts))
    yield Body("contents of a string, the first not UTF-8", "grpc lookup", each + parameter)
    many = b"".join(
        _message_input(number, "indices", b"INT64", _field(5, b"\x18\1" * 4000)) for number in range(size // 9000)
    )
    yield Body("contents of thousands of indices on their own", "grpc lookup", many + parameter)
    right = b"".join(_message_input(number, "indices", b"INT64", index) for number in range(count - 1))
    for name, datatype, contents in (
        ("a number that does not end", b"INT64", _field(3, b"\xff")),
        ("a number too large", b"INT8", _field(2, b"\xff\1")),
        ("a number that is too long", b"INT64", _field(3, b"\xff" * 10 + b"\1")),
        ("another field", b"INT64", _field(6, bytes(4))),
    ):
        last = _message_input(count - 1, "indices", datatype, _field(5, contents))
        yield Body(f"contents of an index, and last {name}", "grpc lookup", right + last + parameter)
    for name, contents in {"nothing": b"", "an index": _field(3, b"\1")}.items():
        piece = _field(5, _field(5, contents))
        yield Body(f"contents of {name} and no name", "grpc lookup", piece * (size // len(piece)))


def message_bodies(size: int) -> Iterator[Body]:
    """Messages over gRPC: lookups of many small raw arrays, and of as many fields as there may be."""
    count = max(2, min(MOST_FEATURES, size // 60))
    parameter = _lookup_parameter(f'{{"features":[{",".join([ONE_TABLE] * count)}]}}')
    raw = b"".join(_message_input(number, "indices", b"INT64") for number in range(count)) + _field(7, bytes(8)) * count
    yield Body("raw arrays of features", "grpc lookup", raw + parameter)
    yield Body("raw arrays of features that are too short", "grpc lookup", raw[:-4] + parameter)
    bags = b"".join(
        _message_input(number, array, datatype)
        for number in range(count // 3)
        for array, datatype in (("indices", b"INT64"), ("offsets", b"INT64"), ("weights", b"FP32"))
    )
    items = (_field(7, bytes(8)) * 2 + _field(7, bytes(4))) * (count // 3)
    pooled = f'{{"features":[{",".join([POOLED_TABLE] * (count // 3))}]}}'
    yield Body("raw arrays of weighted bags", "grpc lookup", bags + items + _lookup_parameter(pooled))
    codecs: tuple[Codec, ...] = ("grpc", "grpc lookup")
    for shown in codecs:
        for name, piece in _SMALLEST_FIELDS.items():
            yield Body(f"many {name}", shown, piece * (size // len(piece)))
        room = size // 16
        parameters = b"".join(_field(4, _field(1, b"%08d" % number) + _field(2, b"\x08\1")) for number in range(room))
        yield Body("many parameters", shown, parameters)
        data = _field(1, b"data") + _field(2, b"BYTES") + _field(3, varint(size // 2))
        yield Body("strings of one input", shown, _field(5, data + _field(5, b"\x42\0" * (size // 2))))
        yield Body("names of one input", shown, _field(5, b"\x0a\0" * (size // 2)))
        yield Body("dimensions", shown, _field(5, _field(1, b"data") + _field(3, b"\1" * size)))
